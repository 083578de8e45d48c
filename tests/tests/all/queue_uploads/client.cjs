// An upload by tus-js-client that is interrupted once and resumed: node client.cjs MODULES ENDPOINT FILE PROTOCOL TOKEN
const [modules, endpoint, file, protocol, token] = process.argv.slice(2);
const fs = require('fs');
const tus = require(`${modules}/tus-js-client`);

// Not a stream of the file: of one, 4.3.1 does not send `Upload-Complete: ?1` with the last part in Node, so the upload never ends by the draft.
const data = fs.readFileSync(file);
const size = data.length;
let interrupted = false;

function begin(uploadUrl) {
  const upload = new tus.Upload(data, {
    endpoint,
    uploadUrl,
    uploadSize: size,
    protocol,
    // Within a block.
    chunkSize: 1000001,
    headers: token ? { Authorization: `Bearer ${token}` } : {},
    metadata: { filename: 'file' },
    retryDelays: null,
    onError: (error) => {
      console.error(String(error));
      process.exit(1);
    },
    onProgress: (sent) => {
      // In the middle of a part: its connection ends.
      if (!interrupted && sent > size / 2) {
        interrupted = true;
        const { url } = upload;
        upload.abort().then(() => setTimeout(() => begin(url), 100));
      }
    },
    onSuccess: () => {
      console.log(interrupted ? 'resumed' : 'at once');
    },
  });
  upload.start();
}

begin(null);
