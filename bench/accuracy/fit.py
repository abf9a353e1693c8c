"""One factor per mechanism from measured runs, by robust regression with shrinkage.

A run's predicted time is fixed + sum over mechanisms of share[k] * factor[k] seconds; the shares come from predictions
in which one factor is moved. The factors minimise

    sum over runs of huber((log(measured) - log(predicted)) / NOISE) + sum over mechanisms of (log(factor[k]) / spread[k])^2 / 2

so a mechanism about which the runs say nothing keeps factor 1. Gauss-Newton on log(factor).
"""

import math

NOISE = 0.05  # of a measured run against the same plan measured again: half of GH200's repeats differ by more than 2 %
HUBER = 1.345  # residuals beyond this many NOISE count linearly: 95 % efficient for normal residuals (Huber 1981)


def solve(matrix, right):
    """x with matrix x = right, by elimination with pivoting."""
    rows = [list(row) + [value] for row, value in zip(matrix, right)]
    n = len(rows)
    for i in range(n):
        best = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[best] = rows[best], rows[i]
        for r in range(n):
            if r != i:
                scale = rows[r][i] / rows[i][i]
                rows[r] = [a - scale * b for a, b in zip(rows[r], rows[i])]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def total(fixed, shares, factors):
    return fixed + sum(s * f for s, f in zip(shares, factors))


def factors(observations, spreads, iterations=40):
    """One factor per mechanism. `observations`: (fixed seconds, shares in seconds, measured seconds) of each run;
    `spreads`: for each mechanism the standard deviation of log(factor) that is expected without any run."""
    logs = [0.0] * len(spreads)
    for _ in range(iterations):
        current = [math.exp(v) for v in logs]
        matrix = [[0.0] * len(logs) for _ in logs]
        right = [0.0] * len(logs)
        for k, spread in enumerate(spreads):
            matrix[k][k] = 1 / spread**2
            right[k] = -logs[k] / spread**2
        for fixed, shares, measured in observations:
            predicted = total(fixed, shares, current)
            slope = [s * f / predicted for s, f in zip(shares, current)]
            residual = math.log(measured / predicted)
            weight = min(1.0, HUBER * NOISE / abs(residual)) / NOISE**2 if residual else 1 / NOISE**2
            for i, a in enumerate(slope):
                right[i] += weight * a * residual
                for j, b in enumerate(slope):
                    matrix[i][j] += weight * a * b
        step = solve(matrix, right)
        logs = [v + max(-0.5, min(0.5, s)) for v, s in zip(logs, step)]
        if max(abs(s) for s in step) < 1e-10:
            break
    return [math.exp(v) for v in logs]
