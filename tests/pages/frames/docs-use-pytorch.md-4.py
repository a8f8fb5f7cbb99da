# -n 4 --machines 2: torch.distributed.fsdp; torch.distributed.fsdp.FSDPModule.set_all_reduce_hook
import espresso
import frame
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

frame.meet()
model = frame.net()
layers = [model[0], model[2]]
machines, ranks = 2, 2
BLOCK
frame.train(model)
