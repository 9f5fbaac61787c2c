"""A team of threads gives the results of one thread: after a pause, for two callers at once, and after a fork."""

import os
import subprocess
import sys

import pytest
import torch

from eyas.kernels.cpu_linear import can_pack

pytestmark = pytest.mark.skipif(not can_pack(torch.float32), reason="no C operator")

SCRIPT = """
import os, sys, threading, time, traceback
import torch
from eyas.kernels.cpu_linear import PackedWeight, count_threads, use_thread_pool

torch.manual_seed(0)
torch.set_num_threads(1)
shapes = [(rows, num_in, num_out) for rows in (1, 3, 40, 500) for num_in, num_out in ((192, 500), (640, 2_000))]
cases = []
for rows, num_in, num_out in shapes:
    for dtype in (torch.float32, torch.bfloat16):
        weight = PackedWeight([torch.nn.Linear(num_in, num_out, dtype=dtype)])
        cases.append((weight, torch.randn(rows, num_in).to(dtype)))
torch.set_grad_enabled(False)
expected = [weight(rows) for weight, rows in cases]

def check():
    for (weight, rows), before in zip(cases, expected, strict=True):
        assert torch.equal(weight(rows), before)

def check_team(num_threads):
    use_thread_pool(num_threads)
    assert count_threads() == num_threads
    for _ in range(20):
        check()
    time.sleep(0.05)  # the team sleeps
    check()
    failed = []

    def caller():
        try:
            with torch.no_grad():
                for _ in range(10):
                    check()
        except BaseException as error:
            failed.append(error)

    callers = [threading.Thread(target=caller) for _ in range(3)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert not failed, failed
    child = os.fork()
    if child == 0:
        check()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    check()
    print(num_threads, "equal", flush=True)

for num_threads in map(int, sys.argv[1:]):  # a process has one team: each size gets a process
    child = os.fork()
    if child == 0:
        try:
            check_team(num_threads)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # also the child of check_team
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_team_computes_the_same() -> None:
    """With 7 threads on two cores, most of them are never there in time."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, "1", "2", "7"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "1 equal\n2 equal\n7 equal\n", done.stderr
