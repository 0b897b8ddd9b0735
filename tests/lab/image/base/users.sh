# Users of a lab host. `deploy` is who a deployer logs in as; the others have the login shells that break deployers.
set -eu

add_user() { # name shell
  useradd --create-home --shell "$2" "$1"
  passwd --delete "$1" >/dev/null # a locked account may not log in, not even with a key
  printf '%s ALL=(ALL) NOPASSWD: ALL\n' "$1" >"/etc/sudoers.d/$1"
  chmod 0440 "/etc/sudoers.d/$1"
}

add_user deploy /bin/bash
add_user fish /usr/bin/fish
add_user csh /bin/tcsh
add_user loud /bin/bash
add_user strict /bin/bash
add_user interactive /bin/bash

# The engine's own user: no login, no sudo.
useradd --system --create-home --shell /usr/sbin/nologin sglang

# A login that may do nothing but log in.
useradd --create-home --shell /bin/bash nosudo
passwd --delete nosudo >/dev/null

for file in .bashrc .profile; do
  cat >"/home/loud/$file" <<'RC'
echo "Welcome to $(hostname), you have mail."
echo "disk quota: 93 %" >&2
RC
done

cat >/home/strict/.bashrc <<'RC'
set -eu
umask 077
cd /
RC

# Exports that only a person at a terminal gets.
cat >/home/interactive/.bashrc <<'RC'
case $- in
*i*) ;;
*) return ;;
esac
export NCCL_P2P_LEVEL=SYS
export PATH="/opt/sglang/venv/bin:$PATH"
RC

mkdir -p /home/fish/.config/fish
cat >/home/fish/.config/fish/config.fish <<'RC'
set -gx NCCL_PROTO Simple
echo "fish is ready"
RC

cat >/home/csh/.cshrc <<'RC'
setenv NCCL_ALGO Tree
echo "csh is ready"
RC

for user in loud strict interactive fish csh; do chown -R "$user:$user" "/home/$user"; done
