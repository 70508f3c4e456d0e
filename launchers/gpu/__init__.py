"""NVIDIA GPUs.

gpus      the GPUs of this host and their readings, from NVML; the limit of the shares of one
control   what one MPS control daemon says
mps       MPS daemons: started, checked, ended
proof     whether a server is a client of its daemon, with its percentage
probe     whether a percentage is enforced: kernels, timed
checks    the lines of `ctl doctor`
"""
