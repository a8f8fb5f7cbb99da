# -n 2: torch.distributed; torch._C._distributed_c10d.Backend.all_gather_single
import frame
import torch
import espresso

frame.addresses()
BLOCK
x = torch.tensor([float(torch.distributed.get_rank())])
torch.distributed.all_reduce(x)
assert x.item() == 1
torch.distributed.destroy_process_group()
