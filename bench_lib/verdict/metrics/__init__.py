"""The metrics that are judged: what each is made of, and when it is worse."""
