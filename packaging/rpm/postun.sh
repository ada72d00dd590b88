# After an upgrade a running service is started anew, which keeps the placement (RestartKillSignal=SIGUSR1 in the unit).
systemctl daemon-reload >/dev/null 2>&1 || :
if [ "$1" -ge 1 ]; then
    systemctl try-restart instep.service instep-serve.service >/dev/null 2>&1 || :
else
    # The package has files, no directories. Settings that were changed stay as instep.toml.rpmsave.
    rmdir /etc/instep /usr/share/instep /usr/share/licenses/instep /usr/share/doc/instep/examples/prometheus \
        /usr/share/doc/instep/examples /usr/share/doc/instep/decisions /usr/share/doc/instep/models \
        /usr/share/doc/instep/recordings /usr/share/doc/instep 2>/dev/null || :
fi
