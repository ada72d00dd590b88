# Nothing is started at the first installation.
systemctl daemon-reload >/dev/null 2>&1 || :
