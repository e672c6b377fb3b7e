"""What results/comparisons.csv compares, by name: the metrics, and of each the statistics that it has there.

Names only, so that a claims file is checked without reading anything that computes.
"""

LATENCY_STATS = ("mean", "median", "p90", "p99")
_LATENCIES = ("ttft", "tpot", "itl", "e2el")
_OF_A_LAUNCH = (
    "output_throughput", "total_throughput", "request_throughput", "output_throughput_whole_run",
    "output_throughput_per_device", "goodput", "goodput_per_device", "energy_per_output_token",
    "kv_cache_tokens", "max_concurrency", "kv_cache_bytes", "kv_cache_tokens_per_device",
)  # fmt: skip

STATS_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_LATENCIES, LATENCY_STATS),
    **dict.fromkeys(_OF_A_LAUNCH, ("value",)),
}
