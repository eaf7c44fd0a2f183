// A session of a TypeScript client over stdio. Prints one JSON document of what it saw; the test judges it.
// Usage: client.mjs SDK SHIM; SDK: v1, or v2 with a mode: v2:legacy, v2:auto, v2:2026-07-28.
import { once, EventEmitter } from 'node:events';

const [sdk, shim] = process.argv.slice(2);
const [line, mode] = sdk.split(':');
const from = line === 'v1' ? '@modelcontextprotocol/sdk/client' : '@modelcontextprotocol/client';
const { Client } = await import(line === 'v1' ? `${from}/index.js` : from);
const { StdioClientTransport } = await import(line === 'v1' ? `${from}/stdio.js` : `${from}/stdio`);

const seen = { errors: [], lists: [], updates: [], progress: [] };
const news = new EventEmitter();
const handlers = {
  'notifications/resources/updated': (note) => { seen.updates.push(note.params.uri); news.emit('updated'); },
  'notifications/tools/list_changed': () => seen.lists.push('tools'),
  'notifications/resources/list_changed': () => seen.lists.push('resources'),
};
const negotiation = line === 'v1' ? {} : { versionNegotiation: { mode: /^\d/.test(mode) ? { pin: mode } : mode } };
const client = new Client({ name: `typescript-${line}`, version: '1' }, { capabilities: {}, ...negotiation });
client.onerror = (error) => seen.errors.push(String(error));
const transport = new StdioClientTransport({ command: shim, args: [], env: process.env, stderr: 'inherit' });

// The older line of the SDK takes a schema of results and of notifications, the newer one knows them by method.
const types = line === 'v1' ? await import('@modelcontextprotocol/sdk/types.js') : undefined;
const schemas = types && {
  'notifications/resources/updated': types.ResourceUpdatedNotificationSchema,
  'notifications/tools/list_changed': types.ToolListChangedNotificationSchema,
  'notifications/resources/list_changed': types.ResourceListChangedNotificationSchema,
};
for (const [method, handler] of Object.entries(handlers)) client.setNotificationHandler(schemas?.[method] ?? method, handler);
const call = (name, args, options) =>
  types ? client.callTool({ name, arguments: args }, undefined, options) : client.callTool({ name, arguments: args }, options);
const failure = async (promise) => promise.then((value) => ({ value }), (error) => ({ code: error.code, name: error.name }));

if (line === 'v1') transport.setProtocolVersion = (version) => (seen.version = version); // it tells nobody else
await client.connect(transport);
seen.version ??= client.getNegotiatedProtocolVersion();
seen.server = client.getServerVersion();
seen.capabilities = client.getServerCapabilities();
seen.instructions = client.getInstructions();
seen.tools = (await client.listTools()).tools.map((tool) => tool.name);
seen.resources = (await client.listResources()).resources.map((resource) => resource.uri);
seen.unbound = (await call('mbx_whoami', {})).structuredContent;
seen.registered = (await call('mbx_identity', { action: 'register', name: 'shop-backend', role: 'backend' })).structuredContent;
seen.refused = await call('mbx_identity', { action: 'claim', name: 'nobody-is-called-so' });
seen.unknown = await failure(call('no_such_tool', {}));
seen.read = JSON.parse((await client.readResource({ uri: 'mbx://inbox' })).contents[0].text);
seen.missing = await failure(client.readResource({ uri: 'mbx://nothing' }));

// A wait that tells how it goes, and one that is given up: nothing may come for it, and the next call is answered.
const waited = await call('mbx_inbox', { wait_s: 7 }, { onprogress: (step) => seen.progress.push(step) });
seen.waited = waited.structuredContent;
const abort = new AbortController();
const given = failure(call('mbx_inbox', { wait_s: 30 }, { signal: abort.signal, onprogress: () => abort.abort() }));
seen.cancelled = await given;
seen.after = (await call('mbx_identity', { action: 'list' })).structuredContent.you.name;

const listens = seen.version === '2026-07-28';
const subscription = listens
  ? await client.listen({ resourceSubscriptions: ['mbx://inbox'], toolsListChanged: true, resourcesListChanged: true })
  : await client.subscribeResource({ uri: 'mbx://inbox' });
seen.honoured = subscription.honoredFilter ?? null;
const told = once(news, 'updated', { signal: AbortSignal.timeout(20000) });
seen.sent = (await call('mbx_send', { to: ['shop-backend'], subject: 'hello', body: 'to myself' })).structuredContent;
await told;
const inbox = (await call('mbx_inbox', {})).structuredContent;
seen.inbox = inbox.messages.map((message) => message.subject);
if (listens) {
  await subscription.close();
  seen.closed = await subscription.closed;
} else {
  await client.unsubscribeResource({ uri: 'mbx://inbox' });
}
await call('mbx_ack', { ids: inbox.messages.map((message) => message.id) });
const pid = transport.pid;
await client.close();
try {
  process.kill(pid, 0);
  seen.left = 'still there';
} catch (error) {
  seen.left = error.code;
}
console.log(JSON.stringify(seen));
