"""Starting again with memory in huge pages, which glibc decides before Python runs."""

import os
import sys

# Fresh arrays of hundreds of megabytes cost 70 to 200 ms each in page faults otherwise, and a step of a large
# model makes several. Freed memory is kept, up to 32 GiB, for the same reason.
TUNABLES = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=2147483648"
    ":glibc.malloc.trim_threshold=34359738368:glibc.malloc.top_pad=268435456"
)
_NAME = "GLIBC_TUNABLES"


def restart_with_huge_pages() -> None:
    """The same command in the same process, with the tunables set; nothing where they are set or unknown.

    Results do not depend on it.
    """
    if sys.platform == "linux" and _NAME not in os.environ and os.access(sys.executable, os.X_OK):
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, sys.orig_argv, {**os.environ, _NAME: TUNABLES})
