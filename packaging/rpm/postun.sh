# After an upgrade a running service is started anew, which keeps the placement (RestartKillSignal=SIGUSR1 in the unit).
systemctl daemon-reload >/dev/null 2>&1 || :
if [ "$1" -ge 1 ]; then
    systemctl try-restart instep.service instep-serve.service >/dev/null 2>&1 || :
else
    # Settings that were changed stay as instep.toml.rpmsave.
    rmdir /etc/instep 2>/dev/null || :
fi
