from pathlib import Path
def path(folder: Path, release: str) -> Path:
    return folder / "nvidia-open" / release / "nvidia.ko"
