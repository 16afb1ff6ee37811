//! Files of a core on the real disk of the machine that runs the tests: below the target folder, and on its tmpfs.

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use felix_runtime::clock::Clock;
use felix_runtime::executor::{CoreIo, CoreSpec, Wake, spawn_core};
use felix_runtime::file::{
    BLOCK_BYTES, Disk, DiskError, DiskPath, Done, EntryKind, FileId, Files, FilesSettings, LockKind, Op,
    OpenFlags, OpenMode, Outcome, SharedBuf, Token, VolumeId,
};
use felix_runtime::udp::{BufferSizes, DEFAULT_PINNED_BYTES, ReusePortGroup};
use felix_runtime::waker::CoreWaker;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// How long a test waits for one answer before it fails.
const LONG: Duration = Duration::from_secs(60);
const SETTINGS: FilesSettings = FilesSettings { ops_max: 64, pool_bytes: 4 << 20 };

/// A directory that is removed with its value.
struct Dir(PathBuf);

impl Dir {
    fn new(parent: &Path, test: &str) -> Dir {
        let path = parent.join(format!("felix-files-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory for the test");
        Dir(path)
    }

    /// On the volume the tests are built on.
    fn on_disk(test: &str) -> Dir {
        Dir::new(Path::new(env!("CARGO_TARGET_TMPDIR")), test)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // What is left then lies in the target folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A core with one volume, asked one thing after the other.
struct Asker {
    io: CoreIo,
    files: Files,
    volume: VolumeId,
}

impl Asker {
    fn start(&mut self, token: u64, op: Op) {
        self.files.submit(Token(token), op).expect("room for an operation");
    }

    async fn next(&mut self) -> Done {
        let until = self.io.now() + LONG;
        loop {
            if let Some(done) = self.files.poll_done() {
                return done;
            }
            assert!(self.io.now() < until, "no answer");
            self.files.hand_over();
            self.io.wait(Some(until));
        }
    }

    async fn run(&mut self, op: Op) -> Result<Outcome, DiskError> {
        self.start(u64::MAX, op);
        let done = self.next().await;
        assert_eq!(done.token, Token(u64::MAX));
        done.result
    }

    async fn ok(&mut self, op: Op) -> Outcome {
        let text = format!("{op:?}");
        self.run(op).await.unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    async fn fails(&mut self, op: Op) -> DiskError {
        let text = format!("{op:?}");
        self.run(op).await.expect_err(&text)
    }

    fn path(&self, name: &str) -> DiskPath {
        DiskPath::new(self.volume, name).expect("a path")
    }

    fn root(&self) -> DiskPath {
        DiskPath::root(self.volume)
    }

    async fn open(&mut self, name: &str, flags: OpenFlags) -> (FileId, u64) {
        match self.ok(Op::Open { path: self.path(name), flags }).await {
            Outcome::Opened { file, len } => (file, len),
            other => panic!("{other:?}"),
        }
    }

    async fn create(&mut self, name: &str) -> FileId {
        self.open(name, OpenFlags::plain(OpenMode::Create)).await.0
    }

    fn blocks(&self, fill: u8, count: usize) -> SharedBuf {
        let mut buf = self.files.pool().take(count * BLOCK_BYTES).expect("room in the pool");
        buf.push_zeros(count * BLOCK_BYTES).fill(fill);
        buf.freeze()
    }

    async fn read(&mut self, file: FileId, at: u64, max: usize) -> Vec<u8> {
        let room = self.files.pool().read_room(max).expect("room in the pool");
        match self.ok(Op::Read { file, at, room }).await {
            Outcome::Read(bytes) => bytes.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    async fn len(&mut self, file: FileId) -> u64 {
        match self.ok(Op::Len { file }).await {
            Outcome::Len(len) => len,
            other => panic!("{other:?}"),
        }
    }
}

/// Runs `test` on a core of its own with a volume in `dir`, then closes the files.
fn on_core<F, Fut, T>(dir: &Dir, settings: FilesSettings, test: F) -> T
where
    F: FnOnce(Asker) -> Fut + Send + 'static,
    Fut: Future<Output = (Asker, T)> + 'static,
    T: Send + 'static,
{
    let group =
        ReusePortGroup::bind(([127, 0, 0, 1], 0).into(), 1, BufferSizes::default()).expect("a free port");
    let spec = CoreSpec {
        index: 0,
        cpu: None,
        spin: Duration::ZERO,
        name: "test-files".to_owned(),
        pinned_bytes: DEFAULT_PINNED_BYTES,
        clock: Clock::start(),
        waker: CoreWaker::new(),
    };
    let root = dir.0.clone();
    let socket = group.sockets.into_iter().next().expect("one socket");
    let join = spawn_core(spec, socket, move |mut io| async move {
        let mut files = Files::new(&mut io, settings).expect("a ring");
        let volume = files.open_volume(&root).expect("a usable volume");
        let (asker, result) = test(Asker { io, files, volume }).await;
        asker.files.close();
        result
    });
    join.expect("the core starts").join().expect("the core ends")
}

fn plain(mode: OpenMode) -> OpenFlags {
    OpenFlags::plain(mode)
}

#[test]
fn what_was_written_through_either_handle_is_read_back() {
    let dir = Dir::on_disk("read-back");
    on_core(&dir, SETTINGS, |mut core| async move {
        let file = core.create("a").await;
        let (dsync, _) = core.open("a", OpenFlags::dsync(OpenMode::Write)).await;
        core.ok(Op::Presize { file, len: 16 * BLOCK }).await;
        assert_eq!(core.len(file).await, 16 * BLOCK);
        let mut numbered = core.files.pool().take(4 * BLOCK_BYTES).expect("room in the pool");
        (0..4 * BLOCK_BYTES / 8).for_each(|at| numbered.push(&(at as u64).to_le_bytes()));
        let numbered = numbered.freeze();
        core.ok(Op::Write { file, at: 0, data: numbered.clone() }).await;
        core.ok(Op::Sync { file }).await;
        let data = core.blocks(7, 64);
        core.ok(Op::Write { file: dsync, at: 16 * BLOCK, data }).await;
        assert_eq!(core.len(file).await, 80 * BLOCK);
        assert_eq!(core.read(dsync, 0, 4 * BLOCK_BYTES).await, &numbered[..]);
        assert_eq!(core.read(file, 4 * BLOCK, BLOCK_BYTES).await, vec![0; BLOCK_BYTES]);
        assert_eq!(
            core.read(file, 79 * BLOCK, 4 * BLOCK_BYTES).await,
            vec![7; BLOCK_BYTES],
            "the file ends there"
        );
        assert!(core.read(file, 80 * BLOCK, 1).await.is_empty());
        core.ok(Op::SetLen { file, len: BLOCK + 1 }).await;
        assert_eq!(core.read(file, BLOCK, 1).await, &numbered[BLOCK_BYTES..=BLOCK_BYTES]);
        drop(numbered);
        core.ok(Op::Close { file }).await;
        let (file, len) = core.open("a", plain(OpenMode::Read)).await;
        assert_eq!(len, BLOCK + 1);
        assert_eq!(
            core.fails(Op::Write { file, at: 0, data: core.blocks(0, 1) }).await,
            DiskError::WrongMode
        );
        (core, ())
    });
    assert_eq!(fs::metadata(dir.0.join("a")).expect("the file is there").len(), BLOCK + 1);
}

#[test]
fn a_first_file_that_is_empty_does_not_switch_to_polling() {
    let dir = Dir::on_disk("empty-first");
    let (wall, busy) = on_core(&dir, SETTINGS, |mut core| async move {
        let (file, len) = core.open("empty", OpenFlags::dsync(OpenMode::CreateNew)).await;
        assert_eq!(len, 0);
        let (started, cpu) = (Instant::now(), thread_cpu());
        for at in 0..200 {
            let data = core.blocks(1, 16);
            core.ok(Op::Write { file, at: at * 16 * BLOCK, data }).await;
        }
        (core, (started.elapsed(), thread_cpu() - cpu))
    });
    // The polling ring takes all of the processor while a write is in flight.
    assert!(busy < wall / 2, "the core was busy for {busy:?} of {wall:?} while it waited for its disk");
}

/// Processor time of this thread.
fn thread_cpu() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts");
    let nanos = text.split(' ').next().and_then(|text| text.parse().ok()).expect("a number");
    Duration::from_nanos(nanos)
}

#[test]
fn directories_and_names_are_made_listed_renamed_and_removed() {
    let dir = Dir::on_disk("names");
    on_core(&dir, SETTINGS, |mut core| async move {
        let (sub, inner) = (core.path("sub"), core.path("sub/x"));
        core.ok(Op::MakeDir { path: sub.clone() }).await;
        core.create("a").await;
        let moved = core.create("sub/x").await;
        core.ok(Op::SyncDir { dir: sub.clone() }).await;
        assert_eq!(core.fails(Op::RemoveDir { path: sub.clone() }).await, DiskError::NotEmpty);
        core.ok(Op::Rename { from: inner.clone(), to: core.path("b") }).await;
        core.ok(Op::SyncDir { dir: core.root() }).await;
        let data = core.blocks(9, 1);
        core.ok(Op::Write { file: moved, at: 0, data }).await;
        assert_eq!(core.len(moved).await, BLOCK, "an open file does not mind its name");
        core.ok(Op::RemoveDir { path: sub.clone() }).await;
        core.ok(Op::Unlink { path: core.path("a") }).await;
        let Outcome::Listed(entries) = core.ok(Op::List { dir: core.root() }).await else { panic!() };
        let entries: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.kind)).collect();
        assert_eq!(entries, [("b", EntryKind::File)]);
        let Outcome::Space(space) = core.ok(Op::Space { volume: core.volume }).await else { panic!() };
        assert!(space.free_bytes > 0 && space.free_bytes < space.total_bytes, "{space:?}");
        (core, ())
    });
    assert_eq!(fs::read(dir.0.join("b")).expect("the file is there"), vec![9; BLOCK_BYTES]);
}

#[test]
fn errors_name_what_is_wrong() {
    let dir = Dir::on_disk("errors");
    std::os::unix::fs::symlink("/etc/passwd", dir.0.join("link")).expect("a link");
    on_core(&dir, SETTINGS, |mut core| async move {
        let file = core.create("a").await;
        core.ok(Op::MakeDir { path: core.path("d") }).await;
        let open = |path, mode| Op::Open { path, flags: plain(mode) };
        let other_volume = DiskPath::new(VolumeId(9), "a").expect("a path");
        let wrong = [
            (open(core.path("a"), OpenMode::CreateNew), DiskError::Exists),
            (open(core.path("b"), OpenMode::Write), DiskError::Missing),
            (open(core.path("no/b"), OpenMode::Create), DiskError::Missing),
            (open(core.path("d"), OpenMode::Read), DiskError::Io { errno: 21 }),
            (open(core.path("a"), OpenMode::Directory), DiskError::Missing),
            (open(core.path("link"), OpenMode::Read), DiskError::Io { errno: 40 }),
            (open(other_volume, OpenMode::Create), DiskError::NoVolume),
            (Op::MakeDir { path: core.path("d") }, DiskError::Exists),
            (Op::Unlink { path: core.path("b") }, DiskError::Missing),
            (Op::Rename { from: core.path("b"), to: core.path("c") }, DiskError::Missing),
            (Op::Write { file, at: 1, data: core.blocks(0, 1) }, DiskError::Misaligned),
            (Op::Sync { file: FileId(999) }, DiskError::StaleFile),
        ];
        for (op, error) in wrong {
            let text = format!("{op:?}");
            assert_eq!(core.fails(op).await, error, "{text}");
        }
        core.ok(Op::Close { file }).await;
        assert_eq!(core.fails(Op::Close { file }).await, DiskError::StaleFile);
        (core, ())
    });
}

#[test]
fn operations_beyond_the_bound_are_given_back_and_a_close_waits_for_those_before() {
    let dir = Dir::on_disk("bound");
    on_core(&dir, FilesSettings { ops_max: 4, ..SETTINGS }, |mut core| async move {
        let file = core.create("a").await;
        for token in 0..3 {
            let data = core.blocks(token as u8, 1);
            core.start(token, Op::Write { file, at: token * BLOCK, data });
        }
        core.start(3, Op::Close { file });
        let full = core.files.submit(Token(4), Op::Len { file }).expect_err("four are in flight");
        assert!(full.token == Token(4) && matches!(full.op, Op::Len { .. }));
        let mut order = Vec::new();
        while core.files.in_flight() > 0 {
            let done = core.next().await;
            done.result.expect("it works");
            order.push(done.token.0);
        }
        assert_eq!(order.pop(), Some(3), "the close came before {order:?}");
        assert_eq!(core.files.pool().used_bytes(), 0, "buffers came back");
        (core, ())
    });
}

#[test]
fn locks_exclude_other_holders_and_are_waited_for() {
    let dir = Dir::on_disk("locks");
    fs::write(dir.0.join("a"), []).expect("a file");
    let other = fs::OpenOptions::new().write(true).open(dir.0.join("a")).expect("opened");
    other.lock().expect("free");
    let (release, wait_for_release) = std::sync::mpsc::channel();
    let holder = std::thread::spawn(move || {
        wait_for_release.recv().expect("told to");
        other.unlock().expect("held");
    });
    on_core(&dir, SETTINGS, |mut core| async move {
        let lock = |file, kind, wait| Op::Lock { file, kind, wait };
        let (one, _) = core.open("a", plain(OpenMode::Write)).await;
        let (two, _) = core.open("a", OpenFlags::dsync(OpenMode::Write)).await;
        let started = core.io.now();
        let wait = Duration::from_millis(20);
        assert_eq!(core.fails(lock(one, LockKind::Exclusive, wait)).await, DiskError::Locked);
        assert!(core.io.now().saturating_since(started) >= wait);
        core.start(1, lock(one, LockKind::Exclusive, LONG));
        release.send(()).expect("somebody waits");
        core.next().await.result.expect("the lock came free");
        assert_eq!(core.fails(lock(two, LockKind::Shared, Duration::ZERO)).await, DiskError::Locked);
        core.ok(lock(one, LockKind::Shared, Duration::ZERO)).await;
        core.ok(lock(two, LockKind::Shared, Duration::ZERO)).await;
        let directory = Op::Open { path: core.root(), flags: plain(OpenMode::Directory) };
        let Outcome::Opened { file: directory, .. } = core.ok(directory).await else { panic!() };
        core.ok(lock(directory, LockKind::Exclusive, Duration::ZERO)).await;
        assert_eq!(core.fails(Op::Sync { file: directory }).await, DiskError::WrongMode);
        (core, ())
    });
    holder.join().expect("the holder ends");
    let after = fs::OpenOptions::new().write(true).open(dir.0.join("a")).expect("opened");
    after.try_lock().expect("closing gives up the lock");
}

#[test]
fn no_space_is_named_and_does_not_end_the_file() {
    let dir = Dir::new(Path::new("/dev/shm"), "no-space");
    on_core(&dir, SETTINGS, |mut core| async move {
        let file = core.create("a").await;
        assert_eq!(core.fails(Op::Presize { file, len: 1 << 50 }).await, DiskError::NoSpace);
        let data = core.blocks(3, 2);
        core.ok(Op::Write { file, at: 0, data }).await;
        core.ok(Op::Sync { file }).await;
        assert_eq!(core.read(file, 0, 2 * BLOCK_BYTES).await, vec![3; 2 * BLOCK_BYTES]);
        (core, ())
    });
}

#[test]
fn an_answer_that_is_there_when_it_is_asked_for_ends_the_wait() {
    let dir = Dir::on_disk("at-once");
    on_core(&dir, SETTINGS, |mut core| async move {
        let file = core.create("a").await;
        let asked = [Op::Len { file }, Op::Sync { file: FileId(999) }];
        for (token, op) in (1..).zip(asked) {
            let began = core.io.now();
            core.start(token, op);
            core.files.hand_over();
            assert_eq!(core.io.wait(Some(began + Duration::from_secs(5))), Wake::Rung);
            assert_eq!(core.files.poll_done().expect("an answer").token, Token(token));
            // And only that one.
            core.files.hand_over();
            let until = core.io.now() + Duration::from_millis(20);
            assert_eq!(core.io.wait(Some(until)), Wake::Deadline);
        }
        (core, ())
    });
}

#[test]
fn closing_waits_for_everything_in_flight() {
    let dir = Dir::on_disk("close");
    on_core(&dir, SETTINGS, |mut core| async move {
        let file = core.create("a").await;
        for token in 0..16 {
            let data = core.blocks(token as u8 + 1, 4);
            core.start(token, Op::Write { file, at: token * 4 * BLOCK, data });
        }
        (core, ())
    });
    let bytes = fs::read(dir.0.join("a")).expect("the file is there");
    assert_eq!(bytes.len(), 64 * BLOCK_BYTES);
    for (at, block) in bytes.chunks(4 * BLOCK_BYTES).enumerate() {
        assert!(block.iter().all(|byte| *byte == at as u8 + 1), "write {at} was cut off");
    }
    let open = fs::read_dir("/proc/self/fd").expect("procfs is there").flatten();
    let left = open.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(&dir.0))).count();
    assert_eq!(left, 0, "files stayed open");
}

#[test]
fn a_core_that_never_pauses_sees_completions_in_time() {
    let dir = Dir::on_disk("busy");
    let mut waits = on_core(&dir, SETTINGS, |mut core| async move {
        let file = core.create("a").await;
        // Blocks that were written before: a write of one is all the disk has to do.
        for at in 0..25 {
            let data = core.blocks(0, 16);
            core.ok(Op::Write { file, at: at * 16 * BLOCK, data }).await;
        }
        let mut waits = Vec::new();
        for at in 0..400 {
            let data = core.blocks(1, 1);
            let asked = Instant::now();
            core.start(at, Op::Write { file, at: at * BLOCK, data });
            while core.files.poll_done().is_none() {
                // A turn that always finds work.
                let turn = Instant::now();
                while turn.elapsed() < Duration::from_micros(30) {
                    std::hint::spin_loop();
                }
                core.files.hand_over();
                assert!(asked.elapsed() < LONG, "no answer");
            }
            waits.push(asked.elapsed());
        }
        (core, waits)
    });
    waits.sort_unstable();
    let median = waits[waits.len() / 2];
    println!("median {median:?}, 99 of 100 within {:?}", waits[waits.len() * 99 / 100]);
    // 0.5 ms on an idle machine; here the processors are shared with other tests.
    assert!(median < Duration::from_millis(5), "half of the writes took over {median:?}");
}
