"""torch_suite.py [TEST ...]: torch's own tests of a backend (those that it runs for gloo on CPUs), on backend espresso.

Prints the tests that were left out, as torch does. They need torch's package expecttest.
"""

import os
import tempfile

folder = os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="espresso-suite-"))
for name in ("barrier", "test_dir", "init_dir"):
    os.makedirs(os.path.join(folder, name), exist_ok=True)
os.environ.update(BACKEND="gloo", WORLD_SIZE="3")  # BACKEND selects tests

import espresso  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_utils import run_tests  # noqa: E402
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402

espresso.register()
init = dist.init_process_group


def init_espresso(*arguments, backend, **settings):
    init(*arguments, backend="cpu:espresso", **settings)
    assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "espresso"


dist.init_process_group = init_espresso


class TestEspresso(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


if __name__ == "__main__":
    run_tests()
