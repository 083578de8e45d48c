# One thread computes, at the lowest priority, one sleeps, and the first one waits for them.
import os
import threading
import time


def leaf(count):
    total = 0
    for number in range(count):
        total += number * number
    return total


def compute():
    while True:
        leaf(20000)


def sleep():
    while True:
        time.sleep(100000)


os.nice(19)
threads = [threading.Thread(target=function) for function in (compute, sleep)]
for thread in threads:
    thread.start()
# Only a file shows from outside that all threads run.
open("/tmp/interpreted", "w").close()
for thread in threads:
    thread.join()
