"""How far the verdicts can be trusted: launches gathered once, judged by any rule as often as one likes."""
