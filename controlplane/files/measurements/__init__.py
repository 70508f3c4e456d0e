"""Files of measurements: profiles, calibration, pairs, exports of NVIDIA's profilers, inputs of models."""
