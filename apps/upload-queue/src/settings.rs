//! Settings from the arguments and their file, which is read again when it changes.

use crate::config::{Config, FILE_BYTES_MAX, Given};
use crate::operator::{FoundFiles, OperatorFiles};
use crate::reload::{Reload, read_file};
use crate::routes::Queue;
use crate::service::ServeError;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use glasshouse::{Files, Platform};

/// The arguments, and the file that they name.
pub(crate) struct Settings<F> {
    args: Vec<String>,
    path: String,
    pub(crate) reload: Reload<F>,
}

/// Reads the settings. The file, if there is one, is to be read again by [`follow`].
pub(crate) async fn read<P: Platform>(
    p: &P,
    files: FoundFiles<P>,
) -> Result<(Config, Option<Settings<OperatorFiles<P>>>), ServeError> {
    let args = p.args().to_vec();
    let given = Given::from_args(&args).map_err(ServeError::Config)?;
    let Some(path) = given.config.clone() else { return Ok((given.config().map_err(ServeError::Config)?, None)) };
    let no_files = |advice| ServeError::Settings(format!("{path}: {advice}"));
    let reload = Reload::new(files.map_err(no_files)?, &[path.as_str()]).await;
    let settings = Settings { args, path, reload };
    let config = settings.config().await.map_err(ServeError::Settings)?;
    Ok((config, Some(settings)))
}

impl<F: Files> Settings<F> {
    async fn config(&self) -> Result<Config, String> {
        let text = read_file(self.reload.files(), &self.path, FILE_BYTES_MAX).await?;
        Config::from_args_and_file(&self.args, &text).map_err(|error| format!("{error}"))
    }
}

/// Uses what changes in the file, without end, as far as that needs no restart. After an error the settings of before stay.
pub(crate) async fn follow<P: Platform>(
    queue: Rc<Queue<P>>,
    mut settings: Settings<OperatorFiles<P>>,
    mut now: Config,
) {
    let p = &queue.platform;
    loop {
        settings.reload.changed(p).await;
        let new = match settings.config().await {
            Ok(new) => new,
            Err(error) => {
                p.print(format_args!("upload-queue: the settings of before are used: {error}"));
                continue;
            }
        };
        queue.items.set_tries(new.tries);
        queue.deletes_by_connection.set(new.delete_by_connection);
        queue.origins.set(new.origins.clone());
        now = Config {
            tries: new.tries,
            delete_by_connection: new.delete_by_connection,
            origins: new.origins.clone(),
            ..now
        };
        match now == new {
            true => p.print(format_args!("upload-queue: new settings are used")),
            false => p.print(format_args!(
                "upload-queue: new settings are used; those other than tries, delete-by-connection and cors-origin after the next start"
            )),
        }
    }
}
