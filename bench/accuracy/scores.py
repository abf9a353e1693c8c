"""Scores of predictions: errors, order, regret, coverage. Times in seconds."""

import math
import statistics


def percentile(values, share):
    """The value at `share` (0 to 1) of the sorted values, linear between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def errors(pairs):
    """n, median, mean, p90 and maximum of |predicted / measured - 1| and the bias (median signed error) of (predicted,
    measured) pairs."""
    signed = [predicted / measured - 1 for predicted, measured in pairs]
    size = [abs(e) for e in signed]
    return {
        "n": len(size),
        "median": statistics.median(size),
        "mean": statistics.fmean(size),
        "p90": percentile(size, 0.9),
        "max": max(size),
        "bias": statistics.median(signed),
    }


def order(groups):
    """Pairs of runs in the same group that are predicted in the measured order, all pairs, Kendall's tau, and the mean
    and largest top-1 regret. `groups`: lists of (predicted, measured); groups of one run do not count."""
    right = wrong = 0
    regrets = []
    for rows in groups:
        if len(rows) < 2:
            continue
        for i, (p, m) in enumerate(rows):
            for q, n in rows[i + 1 :]:
                product = (p - q) * (m - n)
                right += product > 0
                wrong += product < 0
        best = min(m for _, m in rows)
        regrets.append(min(rows)[1] / best - 1)
    pairs = right + wrong
    return {
        "pairs": pairs,
        "right": right,
        "tau": (right - wrong) / pairs if pairs else None,
        "regret_mean": statistics.fmean(regrets) if regrets else None,
        "regret_max": max(regrets) if regrets else None,
    }


def coverage(rows):
    """Share of (low, high, measured) rows with low <= measured <= high, and the median half-width relative to the
    middle."""
    inside = sum(low <= measured <= high for low, high, measured in rows)
    half = statistics.median((high - low) / (high + low) for low, high, _ in rows)
    return {"n": len(rows), "inside": inside / len(rows), "half_width": half}


def conformal(residuals, share=0.9):
    """Half-width on the log scale that covers a further residual with probability `share`: the ceil((n+1) share)-th
    smallest |residual|. With too few residuals for that rank, the largest times sqrt(rank / n), an extrapolation.
    Source: split conformal prediction, Lei et al., JASA 113, 2018."""
    size = sorted(abs(r) for r in residuals)
    rank = math.ceil((len(size) + 1) * share)
    if rank <= len(size):
        return size[rank - 1]
    return size[-1] * math.sqrt(rank / len(size))
