# -n 2: torch.distributed
import espresso
import frame
import torch
from torch.nn.parallel import DistributedDataParallel

frame.meet()
net = frame.net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
BLOCK
frame.train(model, optimizer)
