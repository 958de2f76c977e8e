//! The configuration file, and when it has changed.

use std::path::{Path, PathBuf};

use fencepost_config::{Config, Problems};

/// What is in the file, or why that can't be said.
pub(super) type Content = Result<String, String>;

/// The configuration file of a process.
///
/// It is looked at by what is in it, through whatever links lead there: a ConfigMap of Kubernetes changes by a link that is
/// moved, an editor may write a new file in the place of the old one.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    /// What was acted upon last.
    settled: Content,
    /// What was seen last, if that is something else.
    unsettled: Option<Content>,
}

impl ConfigFile {
    /// Reads the file.
    ///
    /// # Errors
    /// If it can't be read, with its name and why.
    pub fn read(path: &Path) -> Result<ConfigFile, String> {
        let content = read(path)?;
        Ok(ConfigFile { path: path.to_owned(), settled: Ok(content), unsettled: None })
    }

    /// The configuration that was read last.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn first(&self) -> Result<Config, Problems> {
        Config::from_toml(&self.name(), self.settled.as_deref().unwrap_or_default())
    }

    /// How it is called in messages.
    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The configuration in that content.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub(super) fn config(&self, content: &Content) -> Result<Config, Vec<String>> {
        let text = content.as_ref().map_err(|error| vec![error.clone()])?;
        let config = Config::from_toml(&self.name(), text);
        config.map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    /// What is in it now, whether or not somebody is writing it.
    pub(super) fn content_now(&mut self) -> Content {
        self.unsettled = None;
        self.settled = self.look();
        self.settled.clone()
    }

    /// What is in it, if that is new and was the same the last time, so that nobody is in the middle of writing it.
    pub(super) fn changed(&mut self) -> Option<Content> {
        let seen = self.look();
        self.settle(seen)
    }

    fn settle(&mut self, seen: Content) -> Option<Content> {
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

    fn look(&self) -> Content {
        read(&self.path)
    }
}

fn read(path: &Path) -> Content {
    let name = path.display();
    let bytes = std::fs::read(path).map_err(|error| format!("{name}: {error}"))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
        format!("{name}:{line}: is not UTF-8: byte {:#04x}", error.as_bytes()[at])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> ConfigFile {
        ConfigFile { path: PathBuf::from("f.toml"), settled: Ok("old".to_owned()), unsettled: None }
    }

    fn looks(file: &mut ConfigFile, contents: &[&str]) -> Vec<Option<String>> {
        contents.iter().map(|content| file.settle(Ok((*content).to_owned())).map(Result::unwrap)).collect()
    }

    #[test]
    fn a_file_has_changed_once_two_looks_in_a_row_agree() {
        let mut file = file();
        let new = Some("new".to_owned());
        assert_eq!(looks(&mut file, &["old", "ne", "new", "new", "new"]), [None, None, None, new, None]);
    }

    #[test]
    fn a_file_that_is_what_it_was_has_not_changed() {
        assert_eq!(looks(&mut file(), &["new", "old", "new", "old", "old"]), [None, None, None, None, None]);
    }

    #[test]
    fn a_file_that_is_gone_is_told_once() {
        let mut file = file();
        let gone = || Err("no such file".to_owned());
        assert_eq!([file.settle(gone()), file.settle(gone()), file.settle(gone())], [None, Some(gone()), None]);
    }
}
