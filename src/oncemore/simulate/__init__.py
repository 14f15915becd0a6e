"""What-if simulation: recorded runs under other policies and signals, assumed failures, and retry storms.

    recorded_runs  the values that a simulation starts from
    what_if        decide recorded runs again, and compare the totals with those that were recorded
    assumed        the attempts and delays of a policy without history, from assumed failure probabilities
    storm          many clients against one server, under different jitters

Everything here only computes; `queries.recorded_runs` reads the runs, and `cli.simulate` prints the results.
"""
