# The first process of a node, or of the switch, in namespaces of its own: gives the node its view
# of the file system, says "ready", and is a parent to orphans until its standard input ends; a
# line "stay" before lets it live on. The kernel kills every process of the node with it.
# Arguments: directory of the cluster; of a node: its directory, its host name, and a directory
# that it sees even where it is below /tmp.
set -eu
cluster=$1
mount --make-rprivate /
exec 9<"$cluster/lock"
flock -s 9
if [ $# -gt 1 ]; then
    node=$2
    hostname "$3"
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir /run/sshd
    case $4 in
    /tmp/*)
        mkdir -p "$node$4"
        mount --bind "$4" "$node$4"
        ;;
    esac
    mount --rbind "$node/tmp" /tmp
    chmod 1777 /tmp
    mount --bind "$cluster/hosts" /etc/hosts
    # What root's shells do at their start on this machine is nothing that a node should do, and
    # may leave things half done when the node is lost. Nor are root's own keys for ssh.
    home=$(getent passwd 0 | cut -d: -f6)
    for file in .bashrc .bash_profile .bash_login .profile .zshenv .kshrc; do
        [ ! -f "$home/$file" ] || mount --bind /dev/null "$home/$file"
    done
    [ ! -d "$home/.ssh" ] || mount -t tmpfs -o mode=700 tmpfs "$home/.ssh"
    if [ -d "$cluster/ssh" ]; then
        mount --bind "$cluster/ssh/shadow" /etc/shadow
        mount --bind "$cluster/ssh/ssh_config" /etc/ssh/ssh_config
    fi
fi
echo ready
exec >/dev/null
stay=
while read -r word; do stay=$word; done
[ "$stay" = stay ] || exit 0
exec </dev/null 2>/dev/null
while :; do
    sleep 3600 &
    wait $!
done
