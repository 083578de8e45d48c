/* What goes wrong in a job of three ranks, by the name of the case. */
#define _GNU_SOURCE
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void errors(int rank)
{
    int sent[4] = { 1, 2, 3, 4 }, received[2], codes[7];
    MPI_Comm none = MPI_COMM_NULL;
    MPI_Request request;
    MPI_Isend(sent, 4, MPI_INT, rank, 0, MPI_COMM_WORLD, &request);
    codes[0] = MPI_Recv(received, 2, MPI_INT, rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    codes[1] = MPI_Barrier(none);
    codes[2] = MPI_Send(sent, 1, MPI_INT, 3, 0, MPI_COMM_WORLD);
    codes[3] = MPI_Send(sent, 1, MPI_INT, 0, -5, MPI_COMM_WORLD);
    codes[4] = MPI_Send(sent, 1, MPI_DATATYPE_NULL, 0, 0, MPI_COMM_WORLD);
    codes[5] = MPI_Allreduce(sent, received, 1, MPI_FLOAT, MPI_BAND, MPI_COMM_SELF);
    codes[6] = MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, NULL);
    printf("%d %d %d %d %d %d %d\n", codes[0], codes[1], codes[2], codes[3], codes[4], codes[5], codes[6]);
}

int main(int count, char **arguments)
{
    int rank, code;
    const char *name = count > 1 ? arguments[1] : "";
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (strcmp(name, "fatal") != 0) {
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    }
    if (strcmp(name, "errors") == 0) {
        errors(rank);
        MPI_Finalize();
        return 0;
    }
    /* Not before the others have left MPI_Init, where each error is fatal. */
    if (strcmp(name, "killed") == 0 && rank == 1) {
        for (int other = 0; other < 2; other++)
            MPI_Recv(&code, 1, MPI_INT, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        kill(getpid(), SIGKILL);
    } else if (strcmp(name, "killed") == 0) {
        MPI_Send(&rank, 1, MPI_INT, 1, 1, MPI_COMM_WORLD);
    }
    if (strcmp(name, "abort") == 0 && rank == 2)
        MPI_Abort(MPI_COMM_WORLD, 7);
    if (strcmp(name, "leaves") == 0 && rank == 0)
        return 0;
    if (strcmp(name, "fatal") == 0 && rank == 0)
        MPI_Send(&rank, 1, MPI_INT, 99, 0, MPI_COMM_WORLD);
    code = MPI_Barrier(MPI_COMM_WORLD);
    printf("barrier returned %d\n", code);
    fflush(stdout);
    if (code == MPI_SUCCESS)
        printf("went on\n");
    return code ? 3 : 0;
}
