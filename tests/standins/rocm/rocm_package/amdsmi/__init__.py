"""ROCm's Python package ``amdsmi``: the calls that telemetry makes, as 7.1 answers them."""
# ruff: noqa: N818 - as the real one has them

from rocm.present import Present, here

_machines: list[Present] = []
_NAMES = {
    "prochot": "prochot",
    "ppt": "ppt",
    "socket_thermal": "socket_thm",
    "vr_thermal": "vr_thm",
    "hbm_thermal": "hbm_thm",
}
"""Of the counters, in the table of metrics."""


class AmdSmiException(Exception):
    """What the library raises."""


class AmdSmiLibraryException(AmdSmiException):
    """A call that the library refuses."""


def amdsmi_init(_flags=2):
    _machines[:] = [here(__file__)]


def amdsmi_get_processor_handles():
    return list(_machines[0].by_number)


def amdsmi_get_gpu_device_bdf(gpu):
    return gpu["bdf"]


def _card_only(gpu):
    if gpu["partition"]:
        raise AmdSmiLibraryException("AMDSMI_STATUS_NOT_SUPPORTED")


def _power(gpu):
    """Name what a card draws: MI200 tells a mean, later ones the present."""
    power = 0 if gpu["is_secondary"] else round(_machines[0].power_w(gpu))
    has_mean = gpu["arch"].startswith("gfx90")
    names = ("average_socket_power", "current_socket_power")
    return dict(zip(names, (power, "N/A") if has_mean else ("N/A", power), strict=True))


def amdsmi_get_gpu_metrics_info(gpu):
    """Tell the table, in the real package's types: bools where a card's word has flags."""
    _card_only(gpu)
    machine = _machines[0]
    load = max(machine.activity(part) for part in machine.parts(gpu))
    clocks = [round(clock) for clock in machine.clocks_mhz(gpu)]
    told = {
        "temperature_edge": "N/A",
        "temperature_hotspot": machine.heat_c(gpu),
        "average_gfx_activity": load,
        **_power(gpu),
        "current_gfxclk": clocks[0],
        "current_uclk": gpu["memory_clock_mhz"],
    }
    if gpu["arch"].startswith("gfx90"):
        flags = bool(machine.flags(gpu))
        return {
            **told,
            "accumulation_counter": "N/A",
            **{f"{name}_residency_acc": "N/A" for name in _NAMES.values()},
            "current_gfxclks": [clocks[0], *["N/A"] * 7],
            "throttle_status": "N/A",
            "indep_throttle_status": flags,
            "xcp_stats.gfx_busy_inst": [["N/A"] * 8] * 8,
        }
    now = machine.ticks
    counters = machine.counters(gpu, now)
    return {
        **told,
        "throttle_status": "N/A",
        "indep_throttle_status": "N/A",
        "accumulation_counter": now,
        "current_gfxclks": [*clocks, *["N/A"] * (8 - len(clocks))],
        **{f"{_NAMES[name]}_residency_acc": n for name, n in counters.items()},
        "xcp_stats.gfx_busy_inst": [
            [machine.activity(part)] * part["dies"] + ["N/A"] * (8 - part["dies"])
            for part in machine.parts(gpu)
        ],
    }


def amdsmi_get_gpu_process_list(gpu):
    return [
        {
            "name": holder["name"],
            "pid": holder["pid"],
            "mem": holder["memory"],
            "memory_usage": {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": holder["memory"]},
        }
        for holder in _machines[0].holders(gpu)
    ]
