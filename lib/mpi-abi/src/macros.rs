//! How a function is exported: under its own name and under that of the profiling interface, with `int` counts and with `MPI_Count` ones.

/// `fn NAME(arguments) on COMMUNICATOR { body }`: the body returns `Result<(), Error>`; an error goes to the communicator's handler.
macro_rules! mpi {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) on $on:expr; $body:block)*) => { $(
        const _: () = {
            #[allow(unused_unsafe)] // Some bodies are safe.
            unsafe fn inner($($argument: $type),*) -> Result<(), glass_lib_mpi::Error> { unsafe { $body } }
            #[unsafe(export_name = stringify!($name))]
            unsafe extern "C" fn own($($argument: $type),*) -> core::ffi::c_int {
                let span = crate::global::Call::start(const { glass_lib_mpi::trace::mpi_call(stringify!($name)) });
                let result = unsafe { inner($($argument),*) };
                span.end();
                match result {
                    Ok(()) => 0,
                    Err(error) => crate::errors::raise($on, error),
                }
            }
            #[unsafe(export_name = concat!("P", stringify!($name)))]
            unsafe extern "C" fn profiled($($argument: $type),*) -> core::ffi::c_int {
                unsafe { own($($argument),*) }
            }
        };
    )* };
}

/// The same for a function and its variant for large counts: `[C]` is the type of counts and displacements.
macro_rules! mpi_pair {
    ($(fn $name:ident $large:ident [$count:ident] ($($argument:ident: $type:ty),* $(,)?) on $on:expr; $body:block)*) => { $(
        const _: () = {
            #[allow(unused_unsafe)] // Some bodies are safe.
            unsafe fn inner<$count: crate::handles::Count>($($argument: $type),*) -> Result<(), glass_lib_mpi::Error> {
                unsafe { $body }
            }
            mpi_pair!(@export $name, $count = core::ffi::c_int, ($($argument: $type),*), $on);
            mpi_pair!(@export $large, $count = i64, ($($argument: $type),*), $on);
        };
    )* };
    (@export $name:ident, $count:ident = $counts:ty, ($($argument:ident: $type:ty),*), $on:expr) => {
        const _: () = {
            type $count = $counts;
            #[unsafe(export_name = stringify!($name))]
            unsafe extern "C" fn own($($argument: $type),*) -> core::ffi::c_int {
                let span = crate::global::Call::start(const { glass_lib_mpi::trace::mpi_call(stringify!($name)) });
                let result = unsafe { inner::<$count>($($argument),*) };
                span.end();
                match result {
                    Ok(()) => 0,
                    Err(error) => crate::errors::raise($on, error),
                }
            }
            #[unsafe(export_name = concat!("P", stringify!($name)))]
            unsafe extern "C" fn profiled($($argument: $type),*) -> core::ffi::c_int {
                unsafe { own($($argument),*) }
            }
        };
    };
}
