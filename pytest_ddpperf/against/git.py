"""Questions to git."""

from __future__ import annotations

import contextlib
import subprocess  # git has no other interface in the standard library
from pathlib import Path

from pytest_ddpperf.against import guard

_ANSWER_SECONDS = 20.0


class GitError(Exception):
    """A git command failed; the message is git's own."""


class GitMissingError(GitError):
    """There is no git."""


class NoRepositoryError(GitError):
    """The folder is in no git repository."""


def git(folder: Path, *arguments: str, seconds: float = _ANSWER_SECONDS) -> str:
    """Run git in a folder and return its output, stripped; GitError where git fails, is missing, or takes too long."""
    # A refresh of the index takes a lock and may collide with the user's own git. With log.showSignature the output for
    # a commit begins with the check of its signature.
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
        raise GitMissingError("git is not installed") from None
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
        message = (fatal or lines or [f"git exited with status {error.returncode}"])[0]
        raise (NoRepositoryError if "not a git repository" in message else GitError)(message) from None
    except subprocess.TimeoutExpired:
        raise GitError(f"git took longer than {seconds:.0f} s") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise GitError(str(error)) from None
    return done.stdout.strip()


def top_folder(folder: Path) -> Path:
    """The top folder of the work tree that holds ``folder``; GitError where there is no work tree."""
    return Path(git(folder, "rev-parse", "--show-toplevel"))


def commit_of(root: Path, name: str) -> str | None:
    """The full hash of the commit that a branch, tag or hash names; None for an unknown name."""
    with contextlib.suppress(GitError):
        return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}") or None
    return None


def fetching(root: Path) -> str:
    """The advice for a commit that is missing here."""
    with contextlib.suppress(GitError):
        if git(root, "rev-parse", "--is-shallow-repository") == "true":
            return "this is a shallow clone: fetch the rest with git fetch --unshallow (in CI: fetch-depth: 0)"
    return "git fetch may bring it"


def no_repository(folder: Path, error: GitError) -> str:
    """The reason why git knows no repository that holds ``folder``."""
    if isinstance(error, GitMissingError):
        return str(error)
    if isinstance(error, NoRepositoryError):
        return f"{folder} is in no git repository"
    return f"git cannot say what repository {folder} belongs to: {error}"
