//! A platform has its first core's clock, console, random bytes and tasks.

/// Implements [`Cores`](glass_api::Cores) and what it consists of for `$platform` by those of its core, of type `$core`, which the expression returns as a
/// reference.
#[macro_export]
macro_rules! forward_to_core {
    ($platform:ty, $core:ty, |$own:ident| $get:expr) => {
        impl $crate::api::Clock for $platform {
            fn now(&self) -> $crate::api::Instant {
                let $own = self;
                $crate::api::Clock::now($get)
            }

            fn sleep_until(&self, deadline: $crate::api::Instant) -> impl Future<Output = ()> + 'static {
                let $own = self;
                $crate::api::Clock::sleep_until($get, deadline)
            }

            fn wall(&self) -> Option<$crate::api::WallTime> {
                let $own = self;
                $crate::api::Clock::wall($get)
            }
        }

        impl $crate::api::Console for $platform {
            fn print(&self, line: ::core::fmt::Arguments) {
                let $own = self;
                $crate::api::Console::print($get, line);
            }

            async fn writable(&self, bytes: usize) {
                let $own = self;
                $crate::api::Console::writable($get, bytes).await;
            }
        }

        impl $crate::api::Random for $platform {
            fn fill_random(&self, bytes: &mut [u8]) {
                let $own = self;
                $crate::api::Random::fill_random($get, bytes);
            }
        }

        impl $crate::api::Spawn for $platform {
            fn spawn<T: 'static>(
                &self,
                name: &'static str,
                task: impl Future<Output = T> + 'static,
            ) -> Result<$crate::api::JoinHandle<T>, $crate::api::SpawnError> {
                let $own = self;
                $crate::api::Spawn::spawn($get, name, task)
            }

            fn contain<F: Future>(
                &self,
                task: F,
            ) -> impl Future<Output = Result<F::Output, $crate::api::Panicked>> + use<F> {
                let $own = self;
                $crate::api::Spawn::contain($get, task)
            }
        }

        impl $crate::api::Cores for $platform {
            type Core = $core;

            fn cores(&self) -> usize {
                let $own = self;
                $crate::api::Cores::cores($get)
            }

            fn core(&self) -> usize {
                let $own = self;
                $crate::api::Cores::core($get)
            }

            fn spawn_on<T, F>(
                &self,
                core: usize,
                name: &'static str,
                start: impl FnOnce($core) -> F + Send + 'static,
            ) -> Result<$crate::api::CoreHandle<T>, $crate::api::SpawnOnError>
            where
                T: Send + 'static,
                F: Future<Output = T> + 'static,
            {
                let $own = self;
                $crate::api::Cores::spawn_on($get, core, name, start)
            }
        }
    };
}
