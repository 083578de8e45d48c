"""Runs a module of mpi4py's tests: judge.py FOLDERS MODULE. What our library does not have counts as unsupported."""

import sys
import unittest

FOLDERS, MODULE = sys.argv[1:3]
sys.path[:0] = FOLDERS.split(":")
sys.argv[1:] = []

from mpi4py import MPI  # noqa: E402

UNSUPPORTED = 55


class Judged(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.passed = 0
        self.unsupported = 0

    def addSuccess(self, test):
        self.passed += 1

    def addError(self, test, error):
        kind, value, _ = error
        if issubclass(kind, NotImplementedError):
            self.unsupported += 1
        elif issubclass(kind, MPI.Exception) and value.Get_error_class() == UNSUPPORTED:
            self.unsupported += 1
        else:
            super().addError(test, error)


judged = Judged()
unittest.defaultTestLoader.loadTestsFromName(MODULE).run(judged)
failed = judged.failures + judged.errors
lines = "".join(f"{test}\n{trace}\n" for test, trace in failed)
lines += f"judged {judged.passed} passed, {len(failed)} failed, {judged.unsupported} unsupported, {len(judged.skipped)} skipped\n"
sys.stdout.write(lines)
sys.stdout.flush()
MPI.COMM_WORLD.Barrier()
sys.exit(1 if failed else 0)
