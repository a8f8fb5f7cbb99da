# -n 2: torch.distributed.fsdp; torch.distributed.fsdp.FSDPModule.set_all_reduce_hook
import espresso
import frame
from torch.distributed.fsdp import fully_shard

frame.meet()
model = frame.net()
layers = [model[0], model[2]]
BLOCK
frame.train(model)
