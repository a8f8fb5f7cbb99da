# test_outer.sh: espresso.Outer: averaging in every step, DiLoCo with a codec against a simulation, states in mid-round,
# wrong inputs, and a rank that joins while another dies.
. tests/python/common.sh
python_with "torch: pip install torch, and set TORCH_PYTHON" torch.distributed
try job 200 "-n 3" tests/python/check_outer.py average diloco resume wrong
rm -f "$tmp"/store*
try job 200 "--elastic -n 2" tests/python/check_join.py
checked
