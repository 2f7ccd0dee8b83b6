"""``amd-smi`` of ROCm 6.3 (lists) and 7.1 (``gpu_data``): the commands and sections in use."""

import argparse
import json
import sys
from typing import Any

from rocm_machine.present import Device, Present, here

NONE = "N/A"
SERIES_7 = (7, 0)
SECTIONS = ("asic", "bus", "ifwi", "vbios", "limit", "driver", "board", "partition", "vram")
METRICS = ("usage", "power", "clock", "temperature", "pcie", "ecc", "mem_usage", "throttle")


def valued(value: object, unit: str) -> dict[str, object]:
    return {"value": value, "unit": unit}


class Tool:
    def __init__(self, machine: Present) -> None:
        self.machine = machine
        self.is_7 = machine.version >= SERIES_7

    def enveloped(self, rows: list[dict[str, Any]]) -> object:
        return {"gpu_data": rows} if self.is_7 else rows

    # --- list, version

    def do_list(self, gpus: list[Device], options: argparse.Namespace) -> object:
        if options.e and not self.is_7:
            # As the real one of 6.3 does, whose status is 0 then.
            return {"error": "Command 'list' does not know '-e'", "code": -2}
        rows = []
        for gpu in gpus:
            row = {
                "gpu": gpu["smi"],
                "bdf": gpu["bdf"],
                "uuid": f"{gpu['serial'][8:]}-0000-1000-8000-{gpu['hip_uuid'][4:]}",
                "kfd_id": gpu["kfd_id"],
                "node_id": gpu["node"],
                "partition_id": gpu["partition"],
            }
            if options.e:
                row |= {
                    "render": f"renderD{128 + gpu['smi']}",
                    "card": f"card{gpu['smi']}",
                    "hsa_id": gpu["node"],
                    "hip_id": gpu["hip"],
                    "hip_uuid": f"GPU-{gpu['hip_uuid']}",
                }
            rows.append(row)
        return rows

    def do_version(self, _gpus: list[Device], _options: argparse.Namespace) -> object:
        return [
            {
                "tool": "AMDSMI Tool",
                "version": "26.1.0" if self.is_7 else "24.7.1",
                "amdsmi_library_version": "26.1.0" if self.is_7 else "24.7.1",
                "rocm_version": self.machine.rocm,
                "amdgpu_version": "6.16.4",
                "amd_hsmp_driver_version": NONE,
            }
        ]

    # --- static

    def do_static(self, gpus: list[Device], options: argparse.Namespace) -> object:
        asked = [name for name in SECTIONS if getattr(options, name, False)]
        rows = []
        for gpu in gpus:
            about = {
                "asic": self.asic(gpu),
                "bus": {"bdf": gpu["bdf"], "max_pcie_width": 16, "slot_type": "OAM"},
                "ifwi" if self.is_7 else "vbios": NONE,
                "limit": self.limit(gpu),
                "driver": {"name": "amdgpu", "version": "6.16.4"},
                "board": {"model_number": NONE, "product_name": NONE},
                "partition": self.partitioned(gpu),
                "vram": self.vram(gpu),
            }
            # Since 7.1 partitions are told where they are asked for alone.
            default = [n for n in about if n != "partition" or not self.is_7]
            rows.append({"gpu": gpu["smi"], **{n: about[n] for n in asked or default}})
        return self.enveloped(rows)

    def asic(self, gpu: Device) -> dict[str, object]:
        arch = gpu["arch"]
        if not self.is_7 and arch == "gfx90a":
            arch = "gfx9010"  # ROCm 6 put names together from decimal parts
        return {
            "market_name": gpu["name"] or NONE,
            "vendor_id": "0x1002",
            "vendor_name": "Advanced Micro Devices Inc. [AMD/ATI]",
            "subvendor_id": "0x1002",
            "device_id": f"0x{gpu['pci_id']}",
            "subsystem_id": f"0x{gpu['pci_id']}",
            "rev_id": "0x00",
            "asic_serial": f"0x{gpu['serial'].upper()}",
            "oam_id": gpu["card"],
            "num_compute_units": gpu["units"],
            "target_graphics_version": arch,
        }

    def limit(self, gpu: Device) -> object:
        if gpu["partition"]:
            return NONE
        cap = 0 if gpu["is_secondary"] else gpu["cap_w"]
        return {
            "max_power": valued(gpu["board_w"], "W"),
            "min_power": valued(0, "W"),
            "socket_power": valued(cap, "W"),
            "slowdown_edge_temperature": NONE,
            "slowdown_hotspot_temperature": valued(100, "C"),
            "slowdown_vram_temperature": valued(105, "C"),
        }

    def partitioned(self, gpu: Device) -> dict[str, object]:
        compute = "accelerator_partition" if self.is_7 else "compute_partition"
        return {
            compute: gpu["compute_partition"],
            "memory_partition": gpu["memory_partition"],
            "partition_id": gpu["partition"],
        }

    def vram(self, gpu: Device) -> dict[str, object]:
        # The first partition is said to have all the card's memory, the others none.
        size = NONE if gpu["partition"] else valued(gpu["card_memory"] // 2**20, "MB")
        return {"type": "HBM", "vendor": NONE, "size": size, "bit_width": 8192}

    # --- partition

    def do_partition(self, gpus: list[Device], _options: argparse.Namespace) -> object:
        return {
            "current_partition": [
                {
                    "gpu_id": gpu["smi"],
                    "memory": gpu["memory_partition"] or NONE,
                    "accelerator_type": gpu["compute_partition"] or NONE,
                    "accelerator_profile_index": 0,
                    "partition_id": str(gpu["partition"]),
                }
                for gpu in gpus
            ]
        }

    # --- metric

    def do_metric(self, gpus: list[Device], options: argparse.Namespace) -> object:
        asked = [name for name in METRICS if getattr(options, name, False)]
        rows = []
        for gpu in gpus:
            about = self.without_sensors() if gpu["partition"] else self.measured(gpu)
            rows.append({"gpu": gpu["smi"], **{n: about[n] for n in asked or about}})
        return self.enveloped(rows)

    def without_sensors(self) -> dict[str, Any]:
        """Only the first partition of a card tells anything."""
        return {
            "usage": NONE,
            "power": {"socket_power": NONE, "power_management": NONE, "throttle_status": NONE},
            "clock": {"gfx_0": {"clk": NONE, "min_clk": NONE, "max_clk": NONE}},
            "temperature": {"edge": NONE, "hotspot": NONE, "mem": NONE},
            "pcie": NONE,
            "ecc": NONE,
            "mem_usage": NONE,
            "throttle": NONE,
        }

    def measured(self, gpu: Device) -> dict[str, Any]:
        machine, parts = self.machine, self.machine.parts(gpu)
        has_counters = not gpu["arch"].startswith("gfx90")
        clocks = machine.clocks_mhz(gpu)
        busy = {
            f"xcp_{part['partition']}": [valued(machine.activity(part), "%")] * part["dies"]
            + [NONE] * (8 - part["dies"])
            for part in parts
        }
        load = max(machine.activity(part) for part in parts)
        power = 0 if gpu["is_secondary"] else machine.power_w(gpu)
        return {
            "usage": {
                "gfx_activity": valued(load, "%"),
                "umc_activity": valued(load // 7, "%"),
                "mm_activity": NONE,
                **({"gfx_busy_inst": busy} if has_counters else {}),
            },
            "power": {
                "socket_power": valued(power, "W"),
                "gfx_voltage": NONE,
                "throttle_status": NONE if has_counters else "UNTHROTTLED",
                "power_management": "ENABLED",
            },
            "clock": {
                **{
                    f"gfx_{die}": {
                        # They differ a little, as dies do.
                        "clk": valued(clock + die % 3 - 1 if len(clocks) > 1 else clock, "MHz"),
                        "min_clk": valued(500, "MHz"),
                        "max_clk": valued(gpu["max_clock_mhz"], "MHz"),
                        "clk_locked": "DISABLED",
                        "deep_sleep": "DISABLED",
                    }
                    for die, clock in enumerate(clocks)
                },
                "mem_0": {"clk": valued(gpu["memory_clock_mhz"], "MHz"), "clk_locked": NONE},
                "vclk_0": {"clk": valued(29, "MHz"), "clk_locked": NONE},
                "fclk_0": {"clk": NONE, "min_clk": NONE, "max_clk": NONE},
            },
            "temperature": {
                "edge": NONE if has_counters else valued(machine.heat_c(gpu) - 6, "C"),
                "hotspot": valued(machine.heat_c(gpu), "C"),
                "mem": valued(machine.heat_c(gpu) - 9, "C"),
            },
            "pcie": {"width": 16, "speed": valued(32, "GT/s")},
            "ecc": {"total_correctable_count": 0, "total_uncorrectable_count": 0},
            "mem_usage": {"total_vram": valued(gpu["card_memory"] // 2**20, "MB")},
            "throttle": self.throttled(gpu) if has_counters else NONE,
        }

    def throttled(self, gpu: Device) -> dict[str, object]:
        now = self.machine.ticks
        told: dict[str, object] = {"accumulation_counter": now}
        counters = self.machine.counters(gpu, now)
        told |= {f"{name}_accumulated": count for name, count in counters.items()}
        if self.is_7:
            told["gfx_clk_below_host_limit_accumulated"] = NONE
        told |= {f"{name}_violation_status": "NOT ACTIVE" for name in counters}
        return told | {f"{name}_violation_activity": valued(0, "%") for name in counters}

    # --- process

    def do_process(self, gpus: list[Device], _options: argparse.Namespace) -> object:
        return [{"gpu": gpu["smi"], "process_list": self.processes(gpu)} for gpu in gpus]

    def processes(self, gpu: Device) -> list[dict[str, object]]:
        listed = [
            {
                "process_info": {
                    "name": holder["name"],
                    "pid": holder["pid"],
                    "memory_usage": {
                        "gtt_mem": valued(2097152, "B"),
                        "cpu_mem": valued(0, "B"),
                        "vram_mem": valued(holder["memory"], "B"),
                    },
                    "mem_usage": valued(holder["memory"] + 2097152, "B"),
                    "usage": {"gfx": valued(0, "ns"), "enc": valued(0, "ns")},
                }
            }
            for holder in self.machine.holders(gpu)
        ]
        return listed or [{"process_info": "No running processes detected"}]


def parser(*, is_7: bool) -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(prog="amd-smi")
    commands = known.add_subparsers(dest="command", required=True)
    names = ["list", "static", "metric", "process", "version"] + ["partition"] * is_7
    for name in names:
        command = commands.add_parser(name)
        command.add_argument("--json", action="store_true")
        if name != "version":
            command.add_argument("-g", "--gpu", nargs="+", default=["all"])
        if name == "list":
            command.add_argument("-e", action="store_true")
        if name == "static":
            command.add_argument("-a", "--asic", action="store_true")
            command.add_argument("-b", "--bus", action="store_true")
            command.add_argument("-l", "--limit", action="store_true")
            command.add_argument("-p", "--partition", action="store_true")
            command.add_argument("-v", "--vram", action="store_true")
        if name == "metric":
            command.add_argument("-u", "--usage", action="store_true")
            command.add_argument("-p", "--power", action="store_true")
            command.add_argument("-c", "--clock", action="store_true")
            command.add_argument("-t", "--temperature", action="store_true")
        if name == "process":
            command.add_argument("-G", "--general", action="store_true")
        if name == "partition":
            command.add_argument("-c", "--current", action="store_true", required=True)
    return known


def chosen(machine: Present, words: list[str], known: argparse.ArgumentParser) -> list[Device]:
    if words == ["all"]:
        return machine.by_number
    named = {str(gpu["smi"]): gpu for gpu in machine.by_number}
    named |= {gpu["bdf"]: gpu for gpu in machine.by_number}
    for word in words:
        if word not in named:
            known.error(f"argument -g/--gpu: Value '{word}' is not a valid GPU")
    return [named[word] for word in words]


def prose(value: object, depth: int = 0) -> list[str]:
    """Print as the tool does for people."""
    lines = []
    for row in value if isinstance(value, list) else [value]:
        for name, about in row.items() if isinstance(row, dict) else ():
            margin = "    " * depth + str(name).upper()
            if isinstance(about, dict) and set(about) == {"value", "unit"}:
                lines.append(f"{margin}: {about['value']} {about['unit']}")
            elif isinstance(about, (dict, list)):
                lines += [f"{margin}:", *prose(about, depth + 1)]
            else:
                lines.append(f"{margin}: {about}")
    return lines


def main(arguments: list[str]) -> int:
    machine = here(__file__)
    tool = Tool(machine)
    known = parser(is_7=tool.is_7)
    options = known.parse_args(arguments)
    gpus = chosen(machine, getattr(options, "gpu", ["all"]), known)
    answer = getattr(tool, f"do_{options.command}")(gpus, options)
    text = json.dumps(answer, indent=4) if options.json else "\n".join(prose(answer))
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
