//! System calls of x86-64 that later architectures have in a form with more arguments only: there these lists are empty.

macro_rules! older {
    ($($name:ident = $call:ident, $by:literal;)*) => {
        $(
            #[doc = concat!("`", stringify!($call), "`, of which `", $by, "` is the later form.")]
            #[cfg(target_arch = "x86_64")]
            pub const $name: &[i64] = &[libc::$call];
            #[doc = concat!("`", $by, "` is all that there is.")]
            #[cfg(not(target_arch = "x86_64"))]
            pub const $name: &[i64] = &[];
        )*
    };
}

older! {
    ACCESS = SYS_access, "faccessat2";
    EPOLL_WAIT = SYS_epoll_wait, "epoll_pwait";
    OPEN = SYS_open, "openat";
    POLL = SYS_poll, "ppoll";
    RENAME = SYS_rename, "renameat2";
    READLINK = SYS_readlink, "readlinkat";
    STAT = SYS_stat, "newfstatat";
    UNLINK = SYS_unlink, "unlinkat";
}
