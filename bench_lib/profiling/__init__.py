"""The device's work in a step: profiles read, kept, compared, and put into words.

``names`` has the kernels' names and purposes, ``kernels`` the difference of two profiles;
``traces`` reads torch.profiler's, ``answers`` answers the workshop guide's questions, ``store``
keeps a profile.
"""
