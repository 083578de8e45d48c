//! Joining the job that the launcher describes in the environment (docs/formats/mpi-ranks.md).

use crate::fabric::ProcessFabric;
use crate::sys;
use alloc::format;
use alloc::string::String;
use glass_lib_mpi::{RANKS_MAX, Segment, bytes_of};

/// Rank, number of ranks and the descriptor of their memory.
const RANK: &str = "GLASS_MPI_RANK";
const RANKS: &str = "GLASS_MPI_RANKS";
const DESCRIPTOR: &str = "GLASS_MPI_FD";

/// Joins the job as the rank that the environment names; without a launcher, as the only rank of a job. Called once in a process.
pub fn join() -> Result<(ProcessFabric, Segment), String> {
    let (rank, ranks, descriptor) = match sys::variable(RANK) {
        None => (0, 1, None),
        Some(_) => (number(RANK)?, number(RANKS)?, Some(number(DESCRIPTOR)? as i32)),
    };
    if ranks == 0 || ranks > RANKS_MAX || rank >= ranks {
        return Err(format!("{RANK} is {rank} and {RANKS} is {ranks}: give 1 to {RANKS_MAX} ranks"));
    }
    let segment =
        sys::segment(descriptor, bytes_of(ranks), ranks, rank).map_err(|error| format!("its memory: {error}"))?;
    Ok((ProcessFabric::new(ranks, &segment), segment))
}

fn number(variable: &str) -> Result<usize, String> {
    let value = sys::variable(variable)
        .ok_or_else(|| format!("{variable} is not set: start the program with `glass run --ranks`"))?;
    value.parse().map_err(|_| format!("{variable} is {value:?}, which is no number"))
}
