# -n 2: torch.distributed
import frame

model = frame.ddp()
import espresso
BLOCK
frame.train(model)
