"""torch_suite.py [TEST ...]: torch's own tests of a backend (those that it runs for gloo on CPUs), on backend espresso.

They are in torch's wheel (torch.testing._internal.distributed.distributed_test), and need package expecttest.
"""

import os
import tempfile

folder = os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="espresso-suite-"))
for name in ("barrier", "test_dir", "init_dir"):
    os.makedirs(os.path.join(folder, name), exist_ok=True)
os.environ.update(BACKEND="gloo", WORLD_SIZE="3")  # BACKEND selects tests
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "60")

import espresso  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_utils import run_tests  # noqa: E402
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402

LEFT_OUT = {
    "c10d does not ask Python whether an operation is complete": (
        "irecv", "isend", "isend_autograd_profiler", "isend_torch_profiler",
    ),
    "receiving from any source": (
        "send_recv_any_source", "send_recv_any_source_autograd_profiler", "send_recv_any_source_torch_profiler",
    ),
    "c10d has it for gloo only": (
        "monitored_barrier_gloo", "monitored_barrier_gloo_rank_0_timeout", "monitored_barrier_gloo_subgroup",
    ),
    "sparse tensors": ("sparse_all_reduce_sum",),
    "it expects gloo's name": ("ddp_logging_data_cpu", "get_backend"),
}  # fmt: skip

espresso.register()
init = dist.init_process_group


def init_espresso(*arguments, backend, **settings):
    init(*arguments, backend="cpu:espresso", **settings)
    assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "espresso"


dist.init_process_group = init_espresso


class TestEspresso(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        for reason, tests in LEFT_OUT.items():
            if self._testMethodName[len("test_") :] in tests:
                self.skipTest(reason)
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


if __name__ == "__main__":
    run_tests()
