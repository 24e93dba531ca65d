"""Lets PyPI's torch, which is linked against the libraries of a GPU, load on a machine without them.

Run by the environment's own python. Reads what torch's libraries need and leave undefined, and compiles for
each library that is missing a stand-in which defines just those symbols. Nothing calls them without a GPU;
if something did, it would get 1, an error in all of these interfaces. The CUDA runtime is called while torch
loads: that one is real, and is not replaced. Needs gcc, nm and readelf.
"""

import re
import subprocess
import sysconfig
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = Path(sysconfig.get_paths()["purelib"])
TORCH = PACKAGES / "torch" / "lib"
LIBRARIES = PACKAGES / "nvidia" / "cu13" / "lib"
"""Where torch's own search path looks for them."""

VENDOR = re.compile(r"lib(cu|nv|nccl)")
REAL = {"libcudart.so.13", "libcuda.so.1"}
"""Installed from PyPI, and never loaded without a driver."""

UNVERSIONED = {
    "cusparseLt": "libcusparseLt",
    "cusparse": "libcusparse",
    "cuFile": "libcufile",
    "curand": "libcurand",
    "cufft": "libcufft",
    "cudnn": "libcudnn",
    "nvshmem": "libnvshmem_host",
    "nccl": "libnccl",
}
"""Which library a symbol belongs to that does not name one as its version; the first prefix that fits."""


@dataclass
class Wanted:
    """What torch expects of the vendor's libraries."""

    libraries: set[str] = field(default_factory=set)
    symbols: set[str] = field(default_factory=set)
    """As `name` or `name@version`."""


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wanted_by(folder: Path) -> Wanted:
    wanted = Wanted()
    for library in sorted(folder.glob("*.so*")):
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "--dynamic", "--wide", library))
        wanted.libraries.update(name for name in needed if VENDOR.match(name))
        for line in output("nm", "--dynamic", "--undefined-only", library).splitlines():
            wanted.symbols.add(line.split()[-1])
    wanted.libraries -= REAL
    return wanted


def home_of(name: str, version: str, libraries: set[str]) -> str | None:
    """The library that has to define a symbol, or None where it is none of ours."""
    if version in libraries:
        return version
    for prefix, stem in UNVERSIONED.items():
        if name.startswith(prefix):
            return next((it for it in libraries if it.split(".so")[0] == stem), None)
    return None


def compile_stub(library: str, symbols: set[tuple[str, str]]) -> None:
    versions = defaultdict(list)
    for name, version in sorted(symbols):
        versions[version].append(name)
    script = "".join(
        f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in versions.items() if version
    )
    with tempfile.TemporaryDirectory() as scratch:
        source, version_script = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name, _ in sorted(symbols)))
        command = ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{library}", "-o", str(LIBRARIES / library)]
        if script:
            version_script.write_text(script)
            command.append(f"-Wl,--version-script={version_script}")
        subprocess.run([*command, str(source)], check=True)


def main() -> None:
    wanted = wanted_by(TORCH)
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    by_library: dict[str, set[tuple[str, str]]] = {library: set() for library in wanted.libraries}
    for symbol in wanted.symbols:
        name, _, version = symbol.partition("@")
        home = home_of(name, version.lstrip("@"), wanted.libraries)
        if home is not None:
            by_library[home].add((name, version.lstrip("@")))
    for library, symbols in sorted(by_library.items()):
        compile_stub(library, symbols)
    print(f"{len(by_library)} stand-ins in {LIBRARIES}")


if __name__ == "__main__":
    main()
