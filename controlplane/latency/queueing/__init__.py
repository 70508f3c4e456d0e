"""Queues of inference requests: the time from arrival to answer, and the largest rate that holds an SLO.

batch_queue  one model at one server or a pool: checks the questions, arranges the arrays
kernel       its loops
turns        bounds of the times of several models of which one executes at a time
"""
