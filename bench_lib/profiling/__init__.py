"""What the device does in a step: profiles read, kept, compared, and put into words.

``names`` knows what kernels are called and do, ``kernels`` the difference of two profiles;
``traces`` reads torch.profiler's, ``answers`` answers the workshop guide's questions, ``store``
keeps a profile.
"""
