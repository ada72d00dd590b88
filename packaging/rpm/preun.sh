# Before removal (0 versions are left) every affinity is put back, also what `instep run --once` or a service that was
# killed left. An upgrade leaves them as they are.
if [ "$1" -eq 0 ]; then
    systemctl disable --now instep.service instep-serve.service >/dev/null 2>&1 || :
    if [ -e /run/instep/journal.json ]; then
        /usr/bin/instep restore || echo "instep: not every affinity could be put back; see above" >&2
    fi
fi
