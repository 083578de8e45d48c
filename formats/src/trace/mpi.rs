//! The calls of MPI that a trace has, by number: [`super::Kind::MpiCall`].

/// Names of the calls; the number of each is its place. New ones are added at the end.
pub const MPI_CALLS: [&str; 78] = [
    "",
    "MPI_Init",
    "MPI_Init_thread",
    "MPI_Finalize",
    "MPI_Send",
    "MPI_Ssend",
    "MPI_Rsend",
    "MPI_Bsend",
    "MPI_Recv",
    "MPI_Mrecv",
    "MPI_Sendrecv",
    "MPI_Sendrecv_replace",
    "MPI_Probe",
    "MPI_Iprobe",
    "MPI_Mprobe",
    "MPI_Improbe",
    "MPI_Isend",
    "MPI_Issend",
    "MPI_Irsend",
    "MPI_Ibsend",
    "MPI_Irecv",
    "MPI_Imrecv",
    "MPI_Isendrecv",
    "MPI_Isendrecv_replace",
    "MPI_Wait",
    "MPI_Waitall",
    "MPI_Waitany",
    "MPI_Waitsome",
    "MPI_Test",
    "MPI_Testall",
    "MPI_Testany",
    "MPI_Testsome",
    "MPI_Start",
    "MPI_Startall",
    "MPI_Barrier",
    "MPI_Bcast",
    "MPI_Reduce",
    "MPI_Allreduce",
    "MPI_Gather",
    "MPI_Gatherv",
    "MPI_Scatter",
    "MPI_Scatterv",
    "MPI_Allgather",
    "MPI_Allgatherv",
    "MPI_Alltoall",
    "MPI_Alltoallv",
    "MPI_Alltoallw",
    "MPI_Scan",
    "MPI_Exscan",
    "MPI_Reduce_scatter",
    "MPI_Reduce_scatter_block",
    "MPI_Ibarrier",
    "MPI_Ibcast",
    "MPI_Ireduce",
    "MPI_Iallreduce",
    "MPI_Igather",
    "MPI_Igatherv",
    "MPI_Iscatter",
    "MPI_Iscatterv",
    "MPI_Iallgather",
    "MPI_Iallgatherv",
    "MPI_Ialltoall",
    "MPI_Ialltoallv",
    "MPI_Ialltoallw",
    "MPI_Iscan",
    "MPI_Iexscan",
    "MPI_Ireduce_scatter",
    "MPI_Ireduce_scatter_block",
    "MPI_Comm_dup",
    "MPI_Comm_dup_with_info",
    "MPI_Comm_idup",
    "MPI_Comm_idup_with_info",
    "MPI_Comm_split",
    "MPI_Comm_split_type",
    "MPI_Comm_create",
    "MPI_Comm_create_group",
    "MPI_Buffer_flush",
    "MPI_Comm_flush_buffer",
];

/// The number of a call; 0 for one that is not traced. A variant for large counts (`_c`) has the number of the other.
pub const fn mpi_call(name: &str) -> u16 {
    let name = name.as_bytes();
    let length = match name {
        [.., b'_', b'c'] => name.len() - 2,
        _ => name.len(),
    };
    let mut number = 1;
    while number < MPI_CALLS.len() {
        if is_start(name, length, MPI_CALLS[number].as_bytes()) {
            return number as u16;
        }
        number += 1;
    }
    0
}

const fn is_start(name: &[u8], length: usize, other: &[u8]) -> bool {
    if other.len() != length {
        return false;
    }
    let mut index = 0;
    while index < length {
        if name[index] != other[index] {
            return false;
        }
        index += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_numbers() {
        for (number, name) in MPI_CALLS.iter().enumerate().skip(1) {
            assert_eq!(mpi_call(name), number as u16, "{name}");
        }
        assert_eq!(mpi_call("MPI_Send_c"), mpi_call("MPI_Send"));
        assert_eq!((mpi_call("MPI_Comm_rank"), mpi_call("MPI_Sen"), mpi_call("")), (0, 0, 0));
    }
}
