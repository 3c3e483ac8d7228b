"""Profiles on disk: one file per key in the cache."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sonoran.errors import PlanError
from sonoran.models.cache import cache_dir
from sonoran.models.untrusted import read_text, refusing
from sonoran.planning.profile.profile import Profile, ProfileKey

FOLDER = "profiles"


def profile_path(key: ProfileKey, cache: Path | None = None) -> Path:
    """Return where the profile of a key lies, whether it is there or not."""
    return (cache or cache_dir()) / FOLDER / f"{key.digest}.json"


def save_profile(profile: Profile, cache: Path | None = None) -> Path:
    """Write a profile, in one step, over an older one; return its path. Raises PlanError."""
    path = profile_path(profile.key, cache)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        with os.fdopen(handle, "wb") as stream:
            stream.write(profile.to_json())
        Path(name).replace(path)
    except OSError as error:
        raise PlanError(f"the profile cannot be written to {path}: {error.strerror or error}") from error
    return path


def load_profile(key: ProfileKey, cache: Path | None = None) -> Profile | None:
    """Return the profile of a key, None if there is none. Raises PlanError for a damaged file."""
    path = profile_path(key, cache)
    with refusing(path, PlanError):
        if not path.exists():
            return None
        profile = _read(path)
    return profile if profile.key == key else None


def load_profiles(cache: Path | None = None) -> list[Profile]:
    """Return every readable profile, newest first; damaged files and other versions are left out."""
    profiles = []
    folder = (cache or cache_dir()) / FOLDER
    with refusing(folder, PlanError):
        found = list(folder.glob("*.json"))
    for path in found:
        try:
            profiles.append(_read(path))
        except PlanError:
            continue
    return sorted(profiles, key=lambda profile: profile.created, reverse=True)


def _read(path: Path) -> Profile:
    text = read_text(path, PlanError)
    try:
        return Profile.from_json(text.encode())
    except PlanError as error:
        raise PlanError(f"{path}: {error}; delete it or calibrate again") from error
