"""What git says of a repository."""

from __future__ import annotations

import contextlib
import subprocess  # git has no other interface in the standard library
from pathlib import Path

from pytest_ddpperf.against import guard

_ANSWER_SECONDS = 20.0


class GitError(Exception):
    """Git said no; the message is what it said."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


def git(folder: Path, *arguments: str, seconds: float = _ANSWER_SECONDS) -> str:
    """What git prints, without the white space around it.

    Args:
        folder: where to run it.
        *arguments: of git.
        seconds: how long it may take.

    Raises:
        GitError: it exits with an error, takes longer, or is not there.
    """
    # Reading must not refresh the index on disk: that takes a lock and may collide with the user's own git. What it
    # shows of a commit must not begin with a signature that it was told to check.
    quietly = ("--no-optional-locks", "-c", "log.showSignature=false")
    command = ["git", *quietly, "-C", str(folder), *arguments]
    try:
        done = subprocess.run(  # noqa: S603  no shell
            command,
            env={**guard.git_environ(), "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=seconds,
            encoding="utf-8",
            errors="replace",
        )
    except FileNotFoundError:
        raise GitError("git is not installed", missing=True) from None
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.strip()]
        fatal = [line for line in said if line.startswith(("fatal:", "error:"))]
        raise GitError((fatal or said or [f"git exited with status {error.returncode}"])[0]) from None
    except subprocess.TimeoutExpired:
        raise GitError(f"git took longer than {seconds:.0f} s") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise GitError(str(error)) from None
    return done.stdout.strip()


def top_folder(folder: Path) -> Path:
    """The top folder of the work tree that holds ``folder``.

    Raises:
        GitError: there is none.
    """
    return Path(git(folder, "rev-parse", "--show-toplevel"))


def commit_of(root: Path, name: str) -> str | None:
    """The full hash of the commit that a branch, tag or hash names; None where there is none."""
    with contextlib.suppress(GitError):
        return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}") or None
    return None


def fetching(root: Path) -> str:
    """What brings a missing commit."""
    with contextlib.suppress(GitError):
        if git(root, "rev-parse", "--is-shallow-repository") == "true":
            return "this is a shallow clone: fetch the rest with git fetch --unshallow (in CI: fetch-depth: 0)"
    return "git fetch may bring it"


def no_repository(folder: Path, error: GitError) -> str:
    """Why git knows of no repository that holds ``folder``."""
    if error.missing:
        return "git is not installed"
    if "not a git repository" in str(error):
        return f"{folder} is in no git repository"
    return f"git cannot say what repository {folder} belongs to: {error}"
