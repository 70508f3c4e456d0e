"""What the first GPU must show, as steps of one run with one report. It never ran on a GPU.

run       the steps in order, each in a process with a time limit, and the report after each
steps     the steps: a function each, which records figures
subject   the device, the servers and the plan that the steps work on
report    the report: JSON, and the same as a text
read      its neighbours beside Eq 1-11 and the default latency model: `python -m gpu_kit.read REPORT`
build     the folders for a host without a network: `make gpu-kit`
models    a model that needs the driver alone
torch_models  two known models, for a Python of the host that has PyTorch

Of the GPU nothing is set: neither its compute mode nor MIG nor clocks. This folder, `tests/gpu` and two
targets of the Makefile can be deleted together.
"""
