// A Vulkan program without graphics: dispatches, push constants, fills, copies, updates, events,
// semaphores, timestamps and indirect dispatch, each with its results checked on the host.
// Prints "wrong ..." for each result that is not right, and "done" at its end.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

#define TRY(call) do { VkResult r_ = (call); if (r_) { fprintf(stderr, "%s = %d\n", #call, r_); exit(1); } } while (0)
enum { COUNT = 256, SIZE = 4 * COUNT };

static VkDevice device;
static VkQueue queue;
static VkCommandPool pool;
static VkFence fence;
static VkBuffer buffers[3];
static void *memory[3];
static VkPipeline pipeline;
static VkPipelineLayout layout;
static VkDescriptorSet set;
static float *a, *b, *c;

static VkCommandBuffer begin(void) {
  VkCommandBufferAllocateInfo info = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                      .commandPool = pool, .commandBufferCount = 1};
  VkCommandBuffer commands;
  TRY(vkAllocateCommandBuffers(device, &info, &commands));
  VkCommandBufferBeginInfo start = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  TRY(vkBeginCommandBuffer(commands, &start));
  return commands;
}

static void end(VkCommandBuffer commands, VkSemaphore wait, VkSemaphore signal) {
  VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
  VkSubmitInfo submit = {VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1,
                         .pCommandBuffers = &commands, .pWaitDstStageMask = &stage,
                         .waitSemaphoreCount = wait != 0, .pWaitSemaphores = &wait,
                         .signalSemaphoreCount = signal != 0, .pSignalSemaphores = &signal};
  TRY(vkEndCommandBuffer(commands));
  TRY(vkQueueSubmit(queue, 1, &submit, fence));
  TRY(vkWaitForFences(device, 1, &fence, 1, UINT64_MAX));
  TRY(vkResetFences(device, 1, &fence));
}

static void bind(VkCommandBuffer commands, unsigned n, float k) {
  struct { unsigned n; float k; } values = {n, k};
  vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
  vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set, 0, 0);
  vkCmdPushConstants(commands, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, 8, &values);
}

static void reset(void) {
  for (int i = 0; i < COUNT; i++) a[i] = i, b[i] = 1000 + i, c[i] = -1;
}

static void expect_scaled(const char *what, int n, float k) {
  for (int i = 0; i < COUNT; i++) {
    float want = i < n ? a[i] * k + b[i] : -1;
    if (c[i] != want) {
      printf("wrong: %s: c[%d] = %g, expected %g\n", what, i, c[i], want);
      return;
    }
  }
}

static void expect_word(const char *what, void *place, int index, unsigned want) {
  unsigned found = ((unsigned *)place)[index];
  if (found != want) printf("wrong: %s: word %d = %#x, expected %#x\n", what, index, found, want);
}

static void start(const char *shader) {
  VkApplicationInfo app = {VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_1};
  VkInstanceCreateInfo make = {VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app};
  VkInstance instance;
  TRY(vkCreateInstance(&make, 0, &instance));
  unsigned count = 1;
  VkPhysicalDevice gpu;
  TRY(vkEnumeratePhysicalDevices(instance, &count, &gpu));
  float priority = 1;
  VkDeviceQueueCreateInfo queues = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1,
                                    .pQueuePriorities = &priority};
  VkDeviceCreateInfo info = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .queueCreateInfoCount = 1,
                             .pQueueCreateInfos = &queues};
  TRY(vkCreateDevice(gpu, &info, 0, &device));
  vkGetDeviceQueue(device, 0, 0, &queue);
  VkDescriptorSetLayoutBinding places[3];
  for (int i = 0; i < 3; i++) {
    VkBufferCreateInfo buffer = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = SIZE, .usage =
        VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
        VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT};
    TRY(vkCreateBuffer(device, &buffer, 0, &buffers[i]));
    VkMemoryAllocateInfo wanted = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = SIZE};
    VkDeviceMemory made;
    TRY(vkAllocateMemory(device, &wanted, 0, &made));
    TRY(vkBindBufferMemory(device, buffers[i], made, 0));
    TRY(vkMapMemory(device, made, 0, VK_WHOLE_SIZE, 0, &memory[i]));
    places[i] = (VkDescriptorSetLayoutBinding){i, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1,
                                               VK_SHADER_STAGE_COMPUTE_BIT};
  }
  a = memory[0], b = memory[1], c = memory[2];
  static unsigned code[1 << 14];
  FILE *file = fopen(shader, "rb");
  if (!file) exit(2);
  VkShaderModuleCreateInfo module_info = {VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
      .codeSize = fread(code, 1, sizeof code, file), .pCode = code};
  VkShaderModule module;
  TRY(vkCreateShaderModule(device, &module_info, 0, &module));
  VkDescriptorSetLayoutCreateInfo sets = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                          .bindingCount = 3, .pBindings = places};
  VkDescriptorSetLayout set_layout;
  TRY(vkCreateDescriptorSetLayout(device, &sets, 0, &set_layout));
  VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, 8};
  VkPipelineLayoutCreateInfo layouts = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
      .setLayoutCount = 1, .pSetLayouts = &set_layout, .pushConstantRangeCount = 1,
      .pPushConstantRanges = &range};
  TRY(vkCreatePipelineLayout(device, &layouts, 0, &layout));
  VkComputePipelineCreateInfo compute = {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
      .stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = module, .pName = "main"},
      .layout = layout};
  TRY(vkCreateComputePipelines(device, 0, 1, &compute, 0, &pipeline));
  VkDescriptorPoolSize sizes = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 3};
  VkDescriptorPoolCreateInfo pools = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = 1,
                                      .poolSizeCount = 1, .pPoolSizes = &sizes};
  VkDescriptorPool descriptors;
  TRY(vkCreateDescriptorPool(device, &pools, 0, &descriptors));
  VkDescriptorSetAllocateInfo wanted = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
      .descriptorPool = descriptors, .descriptorSetCount = 1, .pSetLayouts = &set_layout};
  TRY(vkAllocateDescriptorSets(device, &wanted, &set));
  for (int i = 0; i < 3; i++) {
    VkDescriptorBufferInfo place = {buffers[i], 0, VK_WHOLE_SIZE};
    VkWriteDescriptorSet write = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .dstSet = set,
        .dstBinding = i, .descriptorCount = 1, .pBufferInfo = &place,
        .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER};
    vkUpdateDescriptorSets(device, 1, &write, 0, 0);
  }
  VkCommandPoolCreateInfo pool_info = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
  TRY(vkCreateCommandPool(device, &pool_info, 0, &pool));
  VkFenceCreateInfo fence_info = {VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
  TRY(vkCreateFence(device, &fence_info, 0, &fence));
}

int main(int count, char **arguments) {
  if (count < 2) return 2;
  start(arguments[1]);
  VkCommandBuffer commands;

  reset(), commands = begin(), bind(commands, 256, 2.5f), vkCmdDispatch(commands, 4, 1, 1);
  end(commands, 0, 0), expect_scaled("dispatch", 256, 2.5f);

  reset(), commands = begin(), bind(commands, 100, 0.5f), vkCmdDispatch(commands, 4, 1, 1);
  end(commands, 0, 0), expect_scaled("push constants", 100, 0.5f);

  commands = begin(), vkCmdFillBuffer(commands, buffers[2], 16, SIZE - 16, 0x12345678);
  memset(c, 0, SIZE), end(commands, 0, 0);
  expect_word("fill", c, 3, 0), expect_word("fill", c, 4, 0x12345678);
  expect_word("fill", c, COUNT - 1, 0x12345678);

  VkSemaphoreCreateInfo semaphores = {VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
  VkSemaphore semaphore;
  TRY(vkCreateSemaphore(device, &semaphores, 0, &semaphore));
  reset(), commands = begin();
  VkBufferCopy copy = {4, 12, SIZE - 12};
  vkCmdCopyBuffer(commands, buffers[0], buffers[2], 1, &copy), end(commands, 0, semaphore);
  if (c[2] != -1 || c[3] != 1 || c[COUNT - 1] != COUNT - 3) printf("wrong: copy\n");

  unsigned words[4] = {2, 1, 1, 77};
  commands = begin(), vkCmdUpdateBuffer(commands, buffers[0], 0, 16, words);
  end(commands, semaphore, 0), expect_word("update", a, 3, 77);

  for (int i = 0; i < COUNT; i++) c[i] = -1;
  commands = begin(), bind(commands, 256, 3), vkCmdDispatchIndirect(commands, buffers[0], 0);
  end(commands, 0, 0), expect_scaled("indirect", 128, 3);

  VkEventCreateInfo events = {VK_STRUCTURE_TYPE_EVENT_CREATE_INFO};
  VkEvent event;
  TRY(vkCreateEvent(device, &events, 0, &event));
  reset(), commands = begin(), bind(commands, 256, 4), vkCmdDispatch(commands, 4, 1, 1);
  vkCmdSetEvent(commands, event, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT);
  vkCmdWaitEvents(commands, 1, &event, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                  VK_PIPELINE_STAGE_HOST_BIT, 0, 0, 0, 0, 0, 0);
  end(commands, 0, 0), expect_scaled("event", 256, 4);
  if (vkGetEventStatus(device, event) != VK_EVENT_SET) printf("wrong: event status\n");

  VkQueryPoolCreateInfo queries = {VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                   .queryType = VK_QUERY_TYPE_TIMESTAMP, .queryCount = 2};
  VkQueryPool times;
  TRY(vkCreateQueryPool(device, &queries, 0, &times));
  commands = begin(), vkCmdResetQueryPool(commands, times, 0, 2);
  vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, times, 0);
  vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, times, 1);
  end(commands, 0, 0);
  unsigned long long stamps[2] = {0, 0};
  TRY(vkGetQueryPoolResults(device, times, 0, 2, sizeof stamps, stamps, 8,
                            VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT));
  if (!stamps[0] || stamps[1] < stamps[0]) printf("wrong: timestamps\n");

  vkDeviceWaitIdle(device);
  printf("done\n");
  return 0;
}
