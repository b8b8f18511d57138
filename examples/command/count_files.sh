#!/bin/sh
# A child in POSIX shell: counts the files and lines of its workspace. Follows docs/command-protocol.md with nothing but
# standard tools; a shell has no JSON, so it writes only what it can write safely: numbers and fixed words.
set -eu

# The working folder is the workspace. File names never reach the JSON: they may hold anything.
find . -name .git -prune -o -type f -print | LC_ALL=C sort > "$COORDINATOR_ARTIFACTS/files.txt"
files=$(find . -name .git -prune -o -type f -exec printf x \; | wc -c | tr -d ' ')
lines=$(find . -name .git -prune -o -type f -exec cat {} + | wc -l | tr -d ' ')
echo "counted $files files" # what goes to standard output can be followed, and is kept; it is no result

# Written beside its place and renamed, so that nobody ever sees half of it.
cat > "$COORDINATOR_RESULT.part" <<JSON
{
  "outcome": "completed",
  "output": {"files": $files, "lines": $lines},
  "evidence": [{"name": "how it was counted", "text": "find, cat and wc in the workspace, .git apart"}],
  "artifacts": [{"name": "files.txt", "path": "files.txt", "media_type": "text/plain"}],
  "gaps": ["symbolic links are not followed"]
}
JSON
mv "$COORDINATOR_RESULT.part" "$COORDINATOR_RESULT"
