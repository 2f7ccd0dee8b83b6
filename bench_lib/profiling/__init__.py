"""What the device does in a step: profiles made, read, kept, compared, and put into words.

``names`` knows what kernels are called and do, ``kernels`` the difference of two profiles;
``traces`` reads torch.profiler's, ``readings`` and ``answers`` answer the workshop guide's
questions, ``store`` keeps a profile, ``run`` makes one on this machine.
"""
