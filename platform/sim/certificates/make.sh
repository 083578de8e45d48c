#!/bin/sh
# Makes the certificates of simulations again, valid from 1999 to 2150: a simulation's date is in 2000 to 2100. The key protects nothing.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
: >"$work/index"
printf '[ca]\ndefault_ca=d\n[d]\ndatabase=%s/index\nnew_certs_dir=%s\nrand_serial=yes\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n' \
    "$work" "$work" >"$work/conf"

# Name, names and extensions, arguments of the one who signs.
certificate() {
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$work/csr" -subj "/CN=$1"
    printf '%b' "$2" >"$work/ext"
    openssl ca -batch -notext -config "$work/conf" $3 -in "$work/csr" -startdate 19990101000000Z -enddate 21500101000000Z \
        -extfile "$work/ext" -out "$1.pem"
}

# Nodes 1 to 16 of a world, this machine, and the host of a VM.
names=DNS:localhost,IP:127.0.0.1,IP:10.0.2.2
for host in $(seq 16); do names=$names,IP:10.0.0.$host; done
certificate root 'basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\nsubjectKeyIdentifier=hash\n' "-selfsign -keyfile root.key"
certificate node "subjectAltName=$names\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n" "-cert root.pem -keyfile root.key"
rm -r "$work" root.key
