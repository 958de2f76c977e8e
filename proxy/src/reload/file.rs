//! The configuration file, and when it has changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fencepost_config::{Config, Difference, Included, Problems, included_by};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::files::READ_TIMEOUT;
use crate::file_reader::FileReader;

/// How large the file may be. Nobody writes that much; another file may have got in its place.
const MEBIBYTES_MAX: u64 = 16;

/// How many files it may include.
const INCLUDED_MAX: usize = 1000;

/// What is in the file, or why that can't be said.
pub(super) type Content = Result<Texts, String>;

/// The text of the file, and those that it includes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Texts {
    own: String,
    included: Vec<Included>,
}

/// The configuration file of a process.
///
/// The process watches its content, and that of the files that it includes, through any links.
/// Kubernetes changes a ConfigMap by moving a link, and an editor may replace the file. A file that
/// is not a regular one is read at the start only, because opening a pipe again would wait for a
/// writer.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    reader: FileReader,
    /// What was read at the start.
    first: Texts,
    /// Why it is read at the start only, if it is.
    read_once: Option<String>,
    /// What was acted upon last; of what is read at the start only, why.
    settled: Content,
    /// What was seen last, if that is something else.
    unsettled: Option<Content>,
}

/// What a first user needs to read, not least in a container.
const NO_FILE: &str = ": name your file with --config (in a container, mount it there), or try `fencepost demo`, which needs none";

impl ConfigFile {
    /// Reads the file.
    ///
    /// # Errors
    /// If it can't be read, with its name and why; for a missing file, also with what to do.
    pub fn read(path: &Path) -> Result<ConfigFile, String> {
        let first =
            read(path).map_err(|error| if path.exists() { error } else { error + NO_FILE })?;
        let settled = can_be_read_again(path).map(|()| first.clone());
        let (path, reader, read_once) =
            (path.to_owned(), FileReader::default(), settled.clone().err());
        Ok(ConfigFile { path, reader, first, read_once, settled, unsettled: None })
    }

    /// The configuration that was read at the start.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn first(&self) -> Result<Config, Problems> {
        Config::from_files(&self.name(), &self.first.own, &self.first.included)
    }

    /// How it is called in messages.
    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The configuration in that content, and what is different in it from another. It may have
    /// thousands of routes: others have their turn meanwhile.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub(super) async fn compared(
        &self,
        content: &Content,
        old: &Arc<Config>,
    ) -> Result<(Config, Difference), Vec<String>> {
        let Texts { own, included } = content.clone().map_err(|error| vec![error])?;
        let (name, old) = (self.name(), Arc::clone(old));
        let compared = spawn_blocking(move || {
            let config = Config::from_files(&name, &own, &included)?;
            let difference = Difference::between(&old, &config);
            Ok((config, difference))
        });
        match compared.await {
            Ok(compared) => compared
                .map_err(|problems: Problems| problems.iter().map(ToString::to_string).collect()),
            Err(panic) => Err(vec![format!("{}: {panic}", self.name())]),
        }
    }

    /// Why it is not followed, if it is read at the start only.
    pub(super) fn unfollowed(&self) -> Option<&str> {
        self.read_once.as_deref()
    }

    /// Whether that is what the file holds now, or why that can't be said: not of a pipe that was
    /// read at the start.
    pub(super) fn is_news(&self, content: &Content) -> bool {
        self.read_once.is_none() || content.as_ref().err() != self.read_once.as_ref()
    }

    /// What is in it now, whether or not somebody is writing it.
    pub(super) async fn content_now(&mut self) -> Content {
        let seen = self.look().await;
        self.unsettled = None;
        self.settled = seen.clone();
        seen
    }

    /// What is in it now, as far as anybody can tell.
    pub(super) async fn look(&self) -> Content {
        let path = self.path.clone();
        let look = self.reader.read(move || can_be_read_again(&path).and_then(|()| read(&path)));
        match timeout(READ_TIMEOUT, look).await {
            Ok(Ok(content)) => content,
            Ok(Err(panic)) => Err(format!("{}: {panic}", self.name())),
            Err(_) => Err(format!("{}: could not be read within {READ_TIMEOUT:?}", self.name())),
        }
    }

    /// What was seen, if that is new and was the same the last time, so that nobody is in the
    /// middle of writing it.
    pub(super) fn settle(&mut self, seen: Content) -> Option<Content> {
        if seen == self.settled {
            self.unsettled = None;
            return None;
        }
        if self.unsettled.as_ref() != Some(&seen) {
            self.unsettled = Some(seen);
            return None;
        }
        self.unsettled = None;
        self.settled = seen.clone();
        Some(seen)
    }
}

/// Whether it is a regular file. What else it may be waits for a writer, or was used up when it was
/// read.
fn can_be_read_again(path: &Path) -> Result<(), String> {
    let name = path.display();
    let metadata = path.metadata().map_err(|error| format!("{name}: {error}"))?;
    if metadata.is_file() {
        Ok(())
    } else {
        Err(format!("{name}: is not a regular file, and so read at the start only"))
    }
}

/// Reads the file and those that it includes.
pub(super) fn read(path: &Path) -> Content {
    let own = read_text(path)?;
    let mut included = Vec::new();
    let wrong = |error| format!("{error} (included by {})", path.display());
    for pattern in included_by(&own) {
        for file in matching(&path.with_file_name(""), &pattern).map_err(wrong)? {
            let text = can_be_read_again(&file).and_then(|()| read_text(&file)).map_err(wrong)?;
            included.push(Included { name: file.display().to_string(), text });
        }
    }
    if included.len() > INCLUDED_MAX {
        return Err(format!("{}: includes more than {INCLUDED_MAX} files", path.display()));
    }
    Ok(Texts { own, included })
}

/// The files of a pattern, by name. As in a shell, a star does not stand for the dot of a hidden
/// file.
fn matching(folder: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let path = folder.join(pattern);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((start, end)) = name.split_once('*') else { return Ok(vec![path]) };
    let folder = path.with_file_name("");
    let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
    let unreadable = |error| format!("{}: {error}", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let text = name.to_string_lossy();
        let rest = text.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
        if rest.is_some() && (!text.starts_with('.') || start.starts_with('.')) {
            found.push(folder.join(&name));
        }
    }
    found.sort();
    Ok(found)
}

fn read_text(path: &Path) -> Result<String, String> {
    let name = path.display();
    let bytes = fencepost_tls::read_up_to(MEBIBYTES_MAX, path)
        .map_err(|error| format!("{name}: {error}"))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
        format!("{name}:{line}: is not UTF-8: byte {:#04x}", error.as_bytes()[at])
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    fn file() -> ConfigFile {
        let (path, reader) = (PathBuf::from("f.toml"), FileReader::default());
        ConfigFile {
            path,
            reader,
            first: texts("old"),
            read_once: None,
            settled: Ok(texts("old")),
            unsettled: None,
        }
    }

    fn texts(own: &str) -> Texts {
        Texts { own: own.to_owned(), included: Vec::new() }
    }

    fn looks(file: &mut ConfigFile, contents: &[&str]) -> Vec<Option<String>> {
        contents
            .iter()
            .map(|content| file.settle(Ok(texts(content))).map(|content| content.unwrap().own))
            .collect()
    }

    #[test]
    fn a_file_has_changed_once_two_looks_in_a_row_agree() {
        let mut file = file();
        let new = Some("new".to_owned());
        assert_eq!(
            looks(&mut file, &["old", "ne", "new", "new", "new"]),
            [None, None, None, new, None]
        );
    }

    #[test]
    fn a_file_that_is_what_it_was_has_not_changed() {
        assert_eq!(
            looks(&mut file(), &["new", "old", "new", "old", "old"]),
            [None, None, None, None, None]
        );
    }

    #[test]
    fn a_file_that_is_gone_is_told_once() {
        let mut file = file();
        let gone = || Err("no such file".to_owned());
        assert_eq!(
            [file.settle(gone()), file.settle(gone()), file.settle(gone())],
            [None, Some(gone()), None]
        );
    }

    /// Whatever else the thread had to do waited with it, a SIGTERM too.
    #[tokio::test(start_paused = true)]
    async fn a_look_at_a_file_that_does_not_answer_is_given_up() {
        let (file, (_answer, answers)) = (file(), channel::<()>());
        let hangs = file.reader.read(move || answers.recv_timeout(Duration::from_secs(10)));
        let look = async || tokio::join!(file.look(), advance(READ_TIMEOUT * 2)).0;
        let given_up = async { [look().await, look().await] };
        tokio::select! {
            biased;
            _ = hangs => panic!("it was waited for"),
            seen = given_up => assert_eq!(seen, [(); 2].map(|()| Err("f.toml: could not be read within 5s".to_owned()))),
        }
    }
}
